"""The reference report of Lab 5: every claim follows from the committed results, and the template asks for the same."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from labkit.results import MonitorOverhead, PipelineStage, TrainerRun, load_json

LAB = Path(__file__).parents[2] / "solutions" / "lab5_production"


def claims(name: str) -> dict[str, Any]:
    (block,) = re.findall(r"^```toml\n(.*?)^```", (LAB / name).read_text(), re.MULTILINE | re.DOTALL)
    return dict(tomllib.loads(block)["claims"])


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return claims("REPORT.md")


def test_the_template_asks_for_every_claim_and_answers_none(report: dict[str, Any]) -> None:
    template = claims("REPORT.template.md")
    assert template.keys() == report.keys()
    assert set(template.values()) == {""}


def test_all_results_are_simulated_and_from_one_device(report: dict[str, Any]) -> None:
    kinds: dict[str, Any] = {"training": TrainerRun, "profiling": PipelineStage, "monitoring": MonitorOverhead}
    for name, kind in kinds.items():
        provenance = load_json(LAB / "results" / f"{name}.json", kind).provenance
        assert (provenance.device_name, provenance.simulated) == (report["device"], True)


def test_the_training_claims_are_those_of_the_results(report: dict[str, Any]) -> None:
    (run,) = load_json(LAB / "results" / "training.json", TrainerRun).results
    assert run.ended == "finished"
    assert (report["epochs"], report["optimizer_steps"], report["best_epoch"]) == (
        len(run.epochs),
        run.optimizer_steps,
        run.best_epoch,
    )
    assert report["skipped_steps"] == sum(epoch.skipped_steps for epoch in run.epochs)
    assert run.best_epoch is not None
    assert report["best_accuracy"] == pytest.approx(run.validations[run.best_epoch].accuracy, abs=6e-5)


def test_the_profiling_claims_are_those_of_the_results(report: dict[str, Any]) -> None:
    stages = load_json(LAB / "results" / "profiling.json", PipelineStage).results
    first, tuned = stages[0], stages[-1]
    assert report["bottleneck_as_found"] == first.bottleneck
    assert report["utilization_as_found"] == pytest.approx(first.point.utilization, abs=6e-4)
    assert report["utilization_tuned"] == pytest.approx(tuned.point.utilization, abs=6e-4)
    assert report["utilization_tuned"] > 0.8
    assert report["speedup"] == pytest.approx(tuned.point.samples_per_second / first.point.samples_per_second, abs=0.06)
    settings = tuned.point.settings
    assert (report["tuned_batch_size"], report["tuned_num_workers"]) == (settings.batch_size, settings.num_workers)


def test_the_monitoring_claim_is_that_of_the_results(report: dict[str, Any]) -> None:
    (overhead,) = load_json(LAB / "results" / "monitoring.json", MonitorOverhead).results
    assert report["monitor_overhead"] == pytest.approx(overhead.overhead_ratio, abs=6e-4)


def test_the_plots_of_the_report_are_there() -> None:
    for name in ("training.png", "profiling.png", "monitoring.png"):
        assert (LAB / "results" / name).read_bytes().startswith(b"\x89PNG")
