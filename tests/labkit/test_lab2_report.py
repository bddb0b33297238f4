"""The reference report of Lab 2: every claim follows from the committed results, and the template asks for the same."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from labkit.results import AmpTraining, NumberFormat, PrecisionResult, Saved, StabilityRun, load_json
from solutions.lab2_mixed_precision.precision_comparison import conclude

LAB = Path(__file__).parents[2] / "solutions" / "lab2_mixed_precision"


def claims(name: str) -> dict[str, Any]:
    (block,) = re.findall(r"^```toml\n(.*?)^```", (LAB / name).read_text(), re.MULTILINE | re.DOTALL)
    return dict(tomllib.loads(block)["claims"])


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return claims("REPORT.md")


@pytest.fixture(scope="module")
def precisions() -> Saved[PrecisionResult]:
    return load_json(LAB / "results" / "precisions.json", PrecisionResult)


@pytest.fixture(scope="module")
def runs() -> dict[tuple[float, str, bool], StabilityRun]:
    results = load_json(LAB / "results" / "stability.json", StabilityRun).results
    return {(run.gain, run.dtype, run.scales[0] != 1): run for run in results}


def test_the_template_asks_for_every_claim_and_answers_none(report: dict[str, Any]) -> None:
    template = claims("REPORT.template.md")
    assert template.keys() == report.keys()
    assert set(template.values()) == {""}


def test_all_results_come_from_one_simulated_device(report: dict[str, Any]) -> None:
    kinds: dict[str, Any] = {
        "training": AmpTraining,
        "precisions": PrecisionResult,
        "stability": StabilityRun,
        "formats": NumberFormat,
    }
    for name, kind in kinds.items():
        provenance = load_json(LAB / "results" / f"{name}.json", kind).provenance
        assert (provenance.device_name, provenance.simulated) == (report["device"], True)


def test_ratios_and_accuracies_are_those_of_the_results(
    report: dict[str, Any], precisions: Saved[PrecisionResult]
) -> None:
    conclusions = conclude(precisions.results)
    for name in ("float16", "bfloat16"):
        assert report[f"speedup_{name}"] == pytest.approx(conclusions.speedups[name], rel=0.005)
        assert report[f"memory_ratio_{name}"] == pytest.approx(conclusions.memory_ratios[name], rel=0.005)
    for result in precisions.results:
        assert report[f"accuracy_{result.dtype}"] == pytest.approx(result.accuracy, abs=0.0006)
    assert report["recommended"] == conclusions.recommended


def test_no_product_is_faster_than_the_data_sheet_allows(precisions: Saved[PrecisionResult]) -> None:
    peaks = precisions.provenance.peak_tflops
    assert peaks
    seconds = {result.dtype: result.step_seconds for result in precisions.results}
    for name, value in seconds.items():
        assert value >= seconds["float32"] * peaks["float32"] / peaks[name] * 0.5


def test_the_stability_claims_are_those_of_the_results(
    report: dict[str, Any], runs: dict[tuple[float, str, bool], StabilityRun]
) -> None:
    gradients, activations = runs[2.0**14, "float16", True], runs[2.0**-20, "float16", True]
    assert report["skipped_with_large_gradients"] == gradients.skipped_steps
    assert report["scale_that_fits"] == gradients.scales[-1]
    assert report["layer_that_overflows"] == activations.nonfinite_layer
    assert report["largest_float16"] == 65504


def test_the_plots_of_the_report_are_there() -> None:
    for name in ("training.png", "precisions.png", "stability.png", "formats.png"):
        assert (LAB / "results" / name).read_bytes().startswith(b"\x89PNG")
