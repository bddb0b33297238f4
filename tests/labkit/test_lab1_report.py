"""The reference report of Lab 1: every claim follows from the committed results, and the template asks for the same."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from labkit.results import STAGES, Comparison, Environment, MemoryProfile, OperationTime, Saved, load_json

LAB = Path(__file__).parents[2] / "solutions" / "lab1_gpu_basics"


def claims(name: str) -> dict[str, Any]:
    (block,) = re.findall(r"^```toml\n(.*?)^```", (LAB / name).read_text(), re.MULTILINE | re.DOTALL)
    return dict(tomllib.loads(block)["claims"])


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return claims("REPORT.md")


@pytest.fixture(scope="module")
def benchmark() -> Saved[Comparison]:
    return load_json(LAB / "results" / "benchmark.json", Comparison)


@pytest.fixture(scope="module")
def profiles() -> dict[str, MemoryProfile]:
    results = load_json(LAB / "results" / "memory.json", MemoryProfile).results
    return {profile.dtype: profile for profile in results}


def test_the_template_asks_for_every_claim_and_answers_none(report: dict[str, Any]) -> None:
    template = claims("REPORT.template.md")
    assert template.keys() == report.keys()
    assert set(template.values()) == {""}


def test_all_results_come_from_one_simulated_device(report: dict[str, Any]) -> None:
    kinds: dict[str, Any] = {
        "benchmark": Comparison,
        "memory": MemoryProfile,
        "operations": OperationTime,
        "environment": Environment,
    }
    for name, kind in kinds.items():
        provenance = load_json(LAB / "results" / f"{name}.json", kind).provenance
        assert (provenance.device_name, provenance.simulated) == (report["device"], True)


def test_crossover_and_best_speedup_are_those_of_the_results(
    report: dict[str, Any], benchmark: Saved[Comparison]
) -> None:
    speedups = {result.size: result.cpu.seconds / result.gpu.seconds for result in benchmark.results}
    assert tuple(speedups) == (128, 512, 1024, 2048, 4096)
    slower = [size for size, speedup in speedups.items() if speedup <= 1]
    assert report["crossover_size"] == min(size for size in speedups if size > max(slower, default=0))
    assert report["best_speedup"] == pytest.approx(max(speedups.values()), rel=0.005)
    assert speedups[report["best_speedup_size"]] == max(speedups.values())


def test_share_of_peak_and_bounds_follow_from_results_and_data_sheet(
    report: dict[str, Any], benchmark: Saved[Comparison]
) -> None:
    sheet = benchmark.provenance
    assert sheet.peak_tflops
    assert sheet.launch_seconds
    assert sheet.bandwidth_bytes_per_second
    peak = sheet.peak_tflops["float32"]
    (largest,) = (result.gpu for result in benchmark.results if result.size == 4096)
    assert report["peak_share_4096"] == pytest.approx(2 * 4096**3 / largest.seconds / 1e12 / peak, rel=0.005)
    for size in (128, 4096):
        times = {
            sheet.launch_seconds: "launch",
            12 * size**2 / sheet.bandwidth_bytes_per_second: "memory",
            2 * size**3 / peak / 1e12: "compute",
        }
        assert report[f"bound_{size}"] == times[max(times)]


def test_bottleneck_peaks_and_saving_are_those_of_the_results(
    report: dict[str, Any], profiles: dict[str, MemoryProfile]
) -> None:
    peaks = {dtype: {stage.stage: stage.peak_bytes for stage in profile.stages} for dtype, profile in profiles.items()}
    assert tuple(peaks["float32"]) == tuple(peaks["float16"]) == STAGES
    single, half = max(peaks["float32"].values()), max(peaks["float16"].values())
    assert peaks["float32"][report["memory_bottleneck"]] == single
    assert (report["peak_bytes_float32"], report["peak_bytes_float16"]) == (single, half)
    assert report["fp16_saving"] == pytest.approx(1 - half / single, rel=0.005)


def test_the_slowest_operation_is_that_of_the_results(report: dict[str, Any]) -> None:
    operations = load_json(LAB / "results" / "operations.json", OperationTime).results
    assert report["slowest_operation"] == max(operations, key=lambda operation: operation.device_seconds).name


def test_the_plots_of_the_report_are_there() -> None:
    for name in ("speedup.png", "memory.png"):
        assert (LAB / "results" / name).read_bytes().startswith(b"\x89PNG")
