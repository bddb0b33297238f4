"""The report, its page, and the comparison with an earlier one, from the records of a sound machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import cluster.acceptance
from cluster.acceptance import baseline, page, report, writing
from cluster.acceptance.options import parse
from cluster.acceptance.records import Record
from labkit.results import ResultsError
from tests.cluster import sound

SCHEMA = json.loads((Path(cluster.acceptance.__file__).parent / "report.schema.json").read_text())


def test_the_report_of_a_sound_machine_fits_the_schema_and_the_page_shows_it() -> None:
    document = sound.report(sound.records())
    jsonschema.validate(document, SCHEMA)
    text = page.page(document)
    assert ">PASS<" in text
    assert "Simulated" not in text
    for word in ("NVIDIA H100 80GB HBM3", "690.00 TFLOPS", "256.0 MiB", "18200 images/s", "temperature_celsius"):
        assert word in text, word


def test_values_that_are_no_numbers_fit_the_schema() -> None:
    ranks = sound.records()
    ranks[0].results["training"]["epochs"][-1]["losses"] = [float("nan")] * 4
    document = sound.report(ranks)
    jsonschema.validate(document, SCHEMA)
    json.dumps(document, allow_nan=False)
    assert ">FAIL<" in page.page(document)


def test_a_rank_that_never_started_fits_the_schema() -> None:
    document = sound.report([sound.record(0), Record(rank=1, ending="lost", detail="its node is gone")])
    jsonschema.validate(document, SCHEMA)
    assert ("run: process", "rank 1, ?") in sound.failures(document)


JUDGES = ("run", "expected", "presence", "copies", "bandwidth", "compute", "memory", "load", "gradients", "network",
          "adapters", "communication", "pairs", "training", "steadiness", "hardware_state", "board", "health_diff",
          "consistency", "siblings", "baseline", "form", "performance", "not_judged", "apart")  # fmt: skip


def test_a_judge_that_breaks_costs_the_verdict_and_neither_report_nor_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError("float division by zero")

    standards = report.Standards(earlier=baseline.Baseline(tmp_path / "earlier.json", sound.report(sound.records())))
    for module in JUDGES:
        function = {"form": "repaired"}.get(module, "judge")
        with monkeypatch.context() as patch:
            if callable(getattr(report, module)):
                patch.setattr(report, module, breaks)
            else:
                patch.setattr(getattr(report, module), function, breaks)
            document = sound.report(sound.records(), standards=standards)
        assert document["acceptance"]["status"] == "INCOMPLETE", module
        (check,) = [check for check in document["validation"]["checks"] if check["name"].startswith("judge: ")]
        assert "ZeroDivisionError: float division by zero" in check["evidence"]
        assert "in breaks" in next(iter(document["broken"].values()))
        assert [Record(**record) for record in document["records"]] == sound.records()
        if module == "form":  # of all, it leaves the least
            jsonschema.validate(document, SCHEMA)
            assert "ZeroDivisionError" in page.page(document)


def test_what_the_other_judges_found_counts_although_one_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report.board, "judge", lambda *_: [][1])
    ranks = sound.records()
    ranks[1].results["compute"]["products"]["float16"]["wrong_rows"] = [17]
    document = sound.report(ranks)
    assert document["acceptance"]["status"] == "FAIL"
    assert sound.failures(document) == [("product float16: result", "GPU 1 (rank 1, node17)")]
    assert document["broken"].keys() == {"board"}


def test_records_are_in_the_report_only_if_a_part_broke() -> None:
    assert not {"records", "broken"} & sound.report(sound.records()).keys()


def test_a_page_that_breaks_leaves_the_json_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writing, "page", lambda document: document["nothing"])
    assert writing.write(tmp_path, sound.report(sound.records()))
    assert json.loads((tmp_path / writing.JSON_NAME).read_text())["acceptance"]["status"] == "PASS"
    assert "FINAL ACCEPTANCE: PASS" in (tmp_path / writing.PAGE_NAME).read_text()


def test_what_a_rank_printed_is_escaped_in_the_page() -> None:
    ranks = sound.records()
    ranks[0].ending, ranks[0].log = "died", "<script>alert(1)</script>"
    text = page.page(sound.report(ranks))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_records_travel_as_json() -> None:
    sent = sound.record(1)
    assert Record.loads(sent.dumps()) == sent


@pytest.mark.parametrize("words", [["--device", "tpu"], ["--inject", "flood:1"], ["--device", "cuda:1"]])
def test_a_wrong_command_line_ends_as_could_not_run(words: list[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        parse(words)
    assert leaving.value.code == 2


def compared(tmp_path: Path, now: list[Record], then: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(then))
    earlier = baseline.read(path, sound.options())
    document = report.build(sound.options(), now, simulated=False, standards=report.Standards(earlier=earlier))
    jsonschema.validate(document, SCHEMA)
    return document


def test_the_same_machine_as_before_passes(tmp_path: Path) -> None:
    document = compared(tmp_path, sound.records(), sound.report(sound.records()))
    assert document["acceptance"]["status"] == "PASS"
    assert document["baseline"]["file"].endswith("earlier.json")
    names = {name for name, _ in sound.outcomes(document, "pass") if name.startswith("baseline")}
    assert "baseline: TFLOPS of product bfloat16" in names
    assert "baseline: images per second" in names
    assert any("bus bandwidth of all_reduce" in name for name in names)


def test_what_got_slower_since_the_baseline_is_named(tmp_path: Path) -> None:
    now = sound.records()
    now[1].results["compute"]["products"]["bfloat16"]["tflops"] = 600.0  # of 690
    document = compared(tmp_path, now, sound.report(sound.records()))
    assert sound.failures(document) == [("baseline: TFLOPS of product bfloat16", "rank 1")]


def test_memory_that_got_slower_since_the_baseline_is_named(tmp_path: Path) -> None:
    ranks = sound.records()
    rates = ranks[1].results["bandwidth"]["rates"]
    ranks[1].results["bandwidth"] = {
        **ranks[1].results["bandwidth"],
        "rates": {**rates, "triad": 0.85 * rates["triad"]},
    }
    document = compared(tmp_path, ranks, sound.report(sound.records()))
    assert ("baseline: bandwidth of the GPU's memory, triad (bytes/s)", "rank 1") in sound.failures(document)


def test_a_baseline_of_another_machine_is_not_compared(tmp_path: Path) -> None:
    document = compared(tmp_path, sound.records(), sound.report(sound.records(4)))
    assert document["acceptance"]["status"] == "INCOMPLETE"
    assert sound.outcomes(document, "unverified") == [("baseline: comparable", "all ranks")]


def test_a_file_that_is_no_report_is_no_baseline(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"performance": []}')
    with pytest.raises(ResultsError, match=r"not a report of cluster\.acceptance"):
        baseline.read(path, sound.options())


def spoiled(**values: Any) -> dict[str, Any]:
    return {**sound.report(sound.records()), **values}


def without(part: str, value: Any) -> dict[str, Any]:
    document = sound.report(sound.records())
    return {**document, "performance": {**document["performance"], part: value}}


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (spoiled(acceptance={"status": "FAIL", "exit_code": 1, "summary": []}), "its verdict is FAIL"),
        (spoiled(injected_faults=["slow at rank 1"]), "faults were injected"),
        (spoiled(world_size=3), "no products of some ranks"),
        (without("products", []), "no products of some ranks"),
        (without("collectives", []), "no collectives"),
        (without("training", None), "--validation-only"),
        (without("collectives", [{"operation": "all_reduce"}]), "damaged"),
    ],
)
def test_an_incomplete_baseline_is_refused(tmp_path: Path, then: dict[str, Any], words: str) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(then))
    with pytest.raises(ResultsError, match=words):
        baseline.read(path, sound.options())


def test_a_baseline_without_training_is_enough_for_a_run_without(tmp_path: Path) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(without("training", None)))
    assert baseline.read(path, sound.options("--validation-only")).path == path


def test_a_figure_that_only_the_baseline_has_is_no_pass(tmp_path: Path) -> None:
    now = sound.records()
    del now[1].results["compute"]["products"]["bfloat16"]
    document = compared(tmp_path, now, sound.report(sound.records()))
    assert document["acceptance"]["status"] == "INCOMPLETE"
    assert ("baseline: measured again", "all ranks") in sound.outcomes(document, "unverified")
