"""What got slower is told by what does not depend on the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import against, measure


def results(yardstick: float | None, **figures: Any) -> dict[str, Any]:
    machine = {"date": "2026-01-01"} | ({"yardstick_seconds": yardstick} if yardstick else {})
    return {"machine": machine, "results": figures}


def places(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [difference.place for difference in against.slower(before, now)]


def test_seconds_count_after_the_machines_speed_is_taken_out() -> None:
    before = results(1.0, a={"median_seconds": 2.0}, b={"median_seconds": 2.0})
    assert places(before, results(2.0, a={"median_seconds": 4.1}, b={"median_seconds": 5.0})) == [
        "results.b.median_seconds"
    ]
    assert places(before, results(1.0, a={"median_seconds": 2.1}, b={"median_seconds": 1.0})) == []


def test_without_a_yardstick_ratios_and_counts_are_compared_alone() -> None:
    before = results(None, a={"median_seconds": 1.0, "ratio_to_bare": 1.0, "page_faults": 100})
    now = results(1.0, a={"median_seconds": 9.0, "ratio_to_bare": 1.2, "page_faults": 130})
    assert places(before, now) == ["results.a.page_faults", "results.a.ratio_to_bare"]


def test_between_two_kinds_of_machines_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = results(1.0, a={"median_seconds": 1.0, "ratio_to_bare": 1.0})
    now = results(0.4, a={"median_seconds": 0.8, "ratio_to_bare": 1.2})
    assert places(before, now) == ["results.a.median_seconds", "results.a.ratio_to_bare"]
    before["machine"]["cpu"], now["machine"]["cpu"] = "Intel", "AMD"
    assert places(before, now) == ["results.a.ratio_to_bare"]
    path = tmp_path / "some.json"
    path.write_text(json.dumps(now))
    monkeypatch.setattr(against, "committed", lambda name: before)
    expected = (
        "  measured on another machine than on 2026-01-01 (cpu Intel, now AMD): only ratios and counts are compared"
    )
    assert next(against.report(path)) == expected


def test_the_worst_comes_first_and_what_is_no_measure_of_speed_is_left_out() -> None:
    before = results(1.0, a={"ratio_to_b": 1.0, "score": 10, "max_seconds": 1.0}, c={"cpu_seconds": 1.0})
    now = results(1.0, a={"ratio_to_b": 1.5, "score": 100, "max_seconds": 9.0}, c={"cpu_seconds": 3.0})
    assert places(before, now) == ["results.c.cpu_seconds", "results.a.ratio_to_b"]
    assert str(against.slower(before, now)[0]) == "results.c.cpu_seconds: 1 -> 3 (+200%)"


def test_the_report_says_how_fast_the_machine_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some.json"
    path.write_text(json.dumps(results(3.0, a={"median_seconds": 4.0})))
    monkeypatch.setattr(against, "committed", lambda name: results(1.0, a={"median_seconds": 1.0}))
    assert list(against.report(path)) == [
        "  this machine is 3.00 times as slow as the one of 2026-01-01; times are compared after dividing by that",
        "  slower than on 2026-01-01: results.a.median_seconds: 1 -> 4 (+33%)",
    ]
    monkeypatch.setattr(against, "committed", lambda name: None)
    assert list(against.report(path)) == []


def test_every_committed_result_can_be_compared_with_itself() -> None:
    for path in measure.RESULTS.glob("*.json"):
        known = json.loads(path.read_text())
        assert against.slower(known, known) == []


def test_the_yardstick_is_processor_time_of_this_machine() -> None:
    assert 0 < measure.yardstick() < 5
