"""The reference report of Lab 4: every claim follows from the committed results, and the template asks for the same."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from labkit.results import (
    AttentionResult,
    CheckpointingResult,
    LargeTraining,
    MemoryComparison,
    load_json,
)
from solutions.lab4_memory.gradient_checkpointing import best_interval

LAB = Path(__file__).parents[2] / "solutions" / "lab4_memory"
PARTS = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes")


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


def test_all_results_are_simulated_and_those_of_three_programs_from_one_device(report: dict[str, Any]) -> None:
    kinds: dict[str, Any] = {
        "checkpointing": CheckpointingResult,
        "attention": AttentionResult,
        "memory": MemoryComparison,
    }
    for name, kind in kinds.items():
        provenance = load_json(LAB / "results" / f"{name}.json", kind).provenance
        assert (provenance.device_name, provenance.simulated) == (report["device"], True)
    assert load_json(LAB / "results" / "oom.json", LargeTraining).provenance.simulated


def test_the_checkpointing_claims_are_those_of_the_results(report: dict[str, Any]) -> None:
    results = load_json(LAB / "results" / "checkpointing.json", CheckpointingResult).results
    by_interval = {result.checkpoint_every: result for result in results}
    plain, every = by_interval[None], by_interval[1]
    assert (report["peak_bytes_plain"], report["peak_bytes_every_1"]) == (plain.peak_bytes, every.peak_bytes)
    assert report["time_ratio_every_1"] == pytest.approx(every.step_seconds / plain.step_seconds, rel=0.001)
    assert plain.peak_bytes is not None
    assert report["best_interval"] == best_interval(results, budget_bytes=plain.peak_bytes // 2).checkpoint_every


def test_the_attention_claims_are_those_of_the_results(report: dict[str, Any]) -> None:
    results = load_json(LAB / "results" / "attention.json", AttentionResult).results
    done = {(result.method, result.length): result for result in results if result.peak_bytes and result.seconds}
    standard, flash = done["standard", 4096], done["flash", 4096]
    assert None not in (standard.peak_bytes, flash.peak_bytes, standard.seconds, flash.seconds)
    assert report["memory_ratio_4096"] == pytest.approx(standard.peak_bytes / flash.peak_bytes, rel=0.005)
    assert report["speedup_4096"] == pytest.approx(standard.seconds / flash.seconds, rel=0.005)
    assert report["attention_backend"] == flash.backend
    for method in ("standard", "flash"):
        assert report[f"longest_{method}"] == max(length for name, length in done if name == method)


def test_the_script_that_died_is_as_large_as_it_was_and_fits(report: dict[str, Any]) -> None:
    (result,) = load_json(LAB / "results" / "oom.json", LargeTraining).results
    assert (report["micro_batch"], report["oom_peak_bytes"]) == (result.micro_batch, result.peak_bytes)
    assert 12 * 48 * (4096**2 + 4096) < report["oom_peak_bytes"] < 24e9


def test_the_predictions_are_as_good_as_the_report_says(report: dict[str, Any]) -> None:
    comparisons = load_json(LAB / "results" / "memory.json", MemoryComparison).results
    worst = 0.0
    for comparison in comparisons:
        pairs = [(getattr(comparison.predicted, part), getattr(comparison.measured, part)) for part in PARTS]
        worst = max([worst, *(abs(predicted / measured - 1) for predicted, measured in pairs if measured)])
    assert report["worst_prediction"] == pytest.approx(worst, abs=1e-7)
    (held,) = [
        comparison.measured
        for comparison in comparisons
        if (comparison.setup.model, comparison.setup.optimizer) == ("transformer", "adam")
        and (comparison.setup.dtype, comparison.setup.checkpoint_every) == ("float32", None)
    ]
    assert report["activation_share"] == pytest.approx(held.activation_bytes / held.total_bytes, abs=0.0006)


def test_the_plots_of_the_report_are_there() -> None:
    for name in ("checkpointing.png", "attention.png", "memory.png"):
        assert (LAB / "results" / name).read_bytes().startswith(b"\x89PNG")
