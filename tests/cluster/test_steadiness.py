"""What comes and goes: a median does not show it, the mean over the quick quarter does."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from cluster.acceptance import expectations, report
from cluster.acceptance.checks import steadiness
from cluster.acceptance.pace import summary
from tests.cluster import sound
from tests.cluster.faults import machines, noise, spoils


def test_one_interruption_is_nobodys_fault() -> None:
    seconds = [1e-3] * 999 + [1.0]
    assert summary(seconds)["mean_seconds"] == pytest.approx(1e-3)
    assert summary([1e-3] * 900 + [0.1] * 100)["mean_seconds"] > 9e-3


def test_few_repetitions_still_have_figures() -> None:
    assert summary([2.0])["mean_seconds"] == 2.0
    assert summary([1.0, 1.0, 4.0])["mean_seconds"] == 1.0


@pytest.mark.parametrize(("share", "factor"), [(0.05, 5.0), (0.1, 3.0), (0.2, 2.0), (0.5, 1.4)])
def test_slow_repetitions_that_cost_a_sixth_are_no_pass_and_leave_the_median_alone(share: float, factor: float) -> None:
    times = noise.Jitter(1).of(noise.PRODUCTS, machines.SAMPLES["products"])
    figures = summary(noise.comes_and_goes(times, share, factor, 2).tolist())
    assert figures["mean_seconds"] / figures["p25_seconds"] > 1 / (1 - steadiness.PRODUCTS.passes)
    assert figures["p25_seconds"] == pytest.approx(float(numpy.percentile(times, 25)), rel=0.05)


def verdict(text: str, ranks: list[sound.Record], folder: Path) -> str:
    path = folder / "cluster.toml"
    path.write_text(text)
    document = sound.report(ranks, standards=report.Standards(expected=expectations.read(path)))
    return str(document["acceptance"]["status"])


def test_a_file_says_how_much_may_be_lost(tmp_path: Path) -> None:
    ranks = sound.records()
    spoils.storms(0.1, 4)(ranks)
    assert sound.report(ranks)["acceptance"]["status"] == "INCOMPLETE"
    assert verdict("[steadiness]\nmessages = 0.3", ranks, tmp_path) == "PASS"
    assert verdict("[steadiness]\nmessages = 0.1", ranks, tmp_path) == "FAIL"


def test_a_file_about_what_was_not_measured_is_no_pass(tmp_path: Path) -> None:
    ranks = sound.records()
    for record in ranks:
        del record.results["steadiness"]
    assert sound.report(ranks)["acceptance"]["status"] == "INCOMPLETE", "a test without this stage is an older one"
    assert verdict("[steadiness]\nproducts = 0.1", ranks, tmp_path) == "INCOMPLETE"


def test_a_stage_that_broke_is_named() -> None:
    ranks = sound.records()
    ranks[1].results["steadiness"] = {"error": "AcceleratorError: CUDA error: out of memory"}
    assert sound.failures(sound.report(ranks)) == [("steadiness: runs", ranks[1].subject)]


def test_a_short_training_is_not_judged_by_its_few_steps() -> None:
    ranks = sound.records()
    for epoch in ranks[0].results["training"]["epochs"]:
        epoch["own_seconds"] = [0.01, 0.05] * 8
    names = dict(sound.outcomes(sound.report(ranks), "skipped"))
    assert names["steadiness: training steps"]
