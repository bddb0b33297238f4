"""The reference report of Lab 3: every claim follows from the committed results, and the template asks for the same."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from labkit.results import DdpTraining, ScalingPoint, load_json
from solutions.lab3_distributed import scaling_analysis as analysis

LAB = Path(__file__).parents[2] / "solutions" / "lab3_distributed"


def claims(name: str) -> dict[str, Any]:
    (block,) = re.findall(r"^```toml\n(.*?)^```", (LAB / name).read_text(), re.MULTILINE | re.DOTALL)
    return dict(tomllib.loads(block)["claims"])


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return claims("REPORT.md")


@pytest.fixture(scope="module")
def points() -> tuple[ScalingPoint, ...]:
    return load_json(LAB / "results" / "scaling.json", ScalingPoint).results


def test_the_template_asks_for_every_claim_and_answers_none(report: dict[str, Any]) -> None:
    template = claims("REPORT.template.md")
    assert template.keys() == report.keys()
    assert set(template.values()) == {""}


def test_all_results_come_from_one_simulated_device(report: dict[str, Any]) -> None:
    for name, kind in (("scaling", ScalingPoint), ("training", DdpTraining)):
        provenance = load_json(LAB / "results" / f"{name}.json", kind).provenance
        assert (provenance.device_name, provenance.simulated) == (report["device"], True)


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_speedup_efficiency_and_share_are_those_of_the_results(
    report: dict[str, Any], points: tuple[ScalingPoint, ...], kind: Any
) -> None:
    size = report["largest_world_size"]
    assert size == max(point.world_size for point in points)
    (alone,) = (point for point in points if point.kind == kind and point.world_size == 1)
    (last,) = (point for point in points if point.kind == kind and point.world_size == size)
    ratio = alone.step_seconds / last.step_seconds * (last.batch_size / alone.batch_size)
    assert report[f"speedup_{kind}"] == pytest.approx(ratio, rel=0.005)
    assert report[f"efficiency_{kind}"] == pytest.approx(ratio / size, rel=0.005)
    share = min(last.profile.communication_seconds) / last.step_seconds
    assert report[f"communication_share_{kind}"] == pytest.approx(share, rel=0.005)
    if kind == "strong":
        assert report["bottleneck_strong"] == analysis.name_bottleneck(last.profile)


def test_the_training_is_that_of_the_results(report: dict[str, Any]) -> None:
    (training,) = load_json(LAB / "results" / "training.json", DdpTraining).results
    assert report["accuracy"] == pytest.approx(training.accuracy, rel=0.002)
    assert report["backend"] == training.backend


def test_the_plots_of_the_report_are_there() -> None:
    for name in ("scaling.png", "training.png"):
        assert (LAB / "results" / name).read_bytes().startswith(b"\x89PNG")
