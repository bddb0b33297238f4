"""The reference of Lab 1 without any GPU: measurements on the CPU at tiny sizes, and the analysis on known data."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from labkit.results import (
    STAGES,
    Comparison,
    Environment,
    MatmulResult,
    MemoryProfile,
    OperationTime,
    StageMemory,
    load_json,
)
from solutions.lab1_gpu_basics import benchmark, environment, memory_profiling, profiler

T4 = {"peak_tflops": 8.1, "bandwidth_bytes_per_second": 3.2e11, "launch_seconds": 6.5e-6}


def result(size: int, seconds: float, device: str = "cuda") -> MatmulResult:
    tflops = 2 * size**3 / seconds / 1e12
    return MatmulResult(device=device, dtype="float32", size=size, iterations=1, seconds=seconds, tflops=tflops)


def comparison(size: int, speedup: float) -> Comparison:
    return Comparison(size=size, cpu=result(size, speedup, "cpu"), gpu=result(size, 1.0), speedup=speedup)


def profile(peaks: list[int], allocated: list[int] | None = None) -> MemoryProfile:
    held = allocated or peaks
    stages = tuple(
        StageMemory(stage=stage, allocated_bytes=now, reserved_bytes=2 * peak, peak_bytes=peak)
        for stage, now, peak in zip(STAGES, held, peaks, strict=True)
    )
    return MemoryProfile(device="cuda", dtype="float32", stages=stages)


class Clock:
    """A clock that stands still except for what the test adds, and a product that takes what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
        self.now = 0.0
        self.products = 0
        self.seconds = seconds
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(torch, "mm", self.multiply)

    def multiply(self, *_: object, **__: object) -> None:
        self.products += 1
        self.now += self.seconds(self.products)


def test_a_product_on_the_cpu_is_described_completely() -> None:
    timing = benchmark.benchmark_matmul("cpu", 33, iterations=7, dtype=torch.float64)
    assert (timing.device, timing.dtype, timing.size, timing.iterations) == ("cpu", "float64", 33, 7)
    assert 0 < timing.seconds < 30
    assert timing.tflops == pytest.approx(2 * 33**3 / timing.seconds / 1e12)


def test_seconds_are_per_product_and_exclude_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, lambda number: 100.0 if number <= 10 else 0.25)
    assert benchmark.benchmark_matmul("cpu", 8, iterations=23).seconds == pytest.approx(0.25)


def test_one_slow_product_does_not_move_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, lambda number: 50.0 if number == 13 else 0.25)
    assert benchmark.benchmark_matmul("cpu", 8, iterations=20, warmup=0).seconds == pytest.approx(0.25)


@pytest.mark.parametrize("iterations", [1, 2, 5, 7, 100])
def test_as_many_products_are_timed_as_asked_for(monkeypatch: pytest.MonkeyPatch, iterations: int) -> None:
    clock = Clock(monkeypatch, lambda _: 0.25)
    assert benchmark.benchmark_matmul("cpu", 8, iterations=iterations, warmup=3).iterations == iterations
    assert clock.products == iterations + 3


@pytest.mark.parametrize("arguments", [{"size": 0}, {"size": 8, "iterations": 0}, {"size": 8, "warmup": -1}])
def test_a_benchmark_refuses_senseless_numbers(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="start at 1, warmup at 0"):
        benchmark.benchmark_matmul("cpu", **arguments)


def test_the_cpu_is_not_compared_with_itself() -> None:
    with pytest.raises(ValueError, match="must be a GPU"):
        benchmark.compare_cpu_gpu([8], "cpu")


@pytest.mark.parametrize(
    ("speedups", "crossover"),
    [
        ({}, None),
        ({128: 0.5}, None),
        ({128: 1.0}, None),
        ({128: 1.01}, 128),
        ({128: 0.5, 512: 2.0, 1024: 4.0}, 512),
        ({128: 3.0, 512: 0.9, 1024: 4.0}, 1024),
        ({128: 3.0, 512: 4.0, 1024: 0.9}, None),
        ({1024: 4.0, 128: 0.5, 512: 2.0}, 512),
    ],
)
def test_the_gpu_pays_from_the_crossover_on(speedups: dict[int, float], crossover: int | None) -> None:
    assert benchmark.find_crossover([comparison(*item) for item in speedups.items()]) == crossover


# The border lies where 2 n^3 / 8.1e12 reaches 6.5e-6 s: between 297 and 298.
@pytest.mark.parametrize(("size", "bound"), [(128, "launch"), (297, "launch"), (298, "compute"), (4096, "compute")])
def test_a_t4_in_float32_goes_from_launch_to_compute_bound(size: int, bound: str) -> None:
    assert benchmark.classify_bound(size, **T4) == bound


def test_a_product_with_a_fast_compute_unit_is_memory_bound() -> None:
    # A T4's tensor cores: 3 * 512^2 * 2 / 3.2e11 = 4.9 us, 2 * 512^3 / 65e12 = 4.1 us, and no launch to wait for.
    figures = {"peak_tflops": 65.0, "bandwidth_bytes_per_second": 3.2e11, "launch_seconds": 1e-6}
    assert benchmark.classify_bound(512, **figures, bytes_per_element=2) == "memory"
    assert benchmark.classify_bound(1024, **figures, bytes_per_element=2) == "compute"


def test_of_equal_times_the_first_bound_is_named() -> None:
    # size 1: 3 * 4 / 12 = 1 s of memory, 2 / 2 = 1 s of compute
    figures = {"peak_tflops": 2e-12, "bandwidth_bytes_per_second": 12.0}
    assert benchmark.classify_bound(1, **figures, launch_seconds=1.0) == "launch"
    assert benchmark.classify_bound(1, **figures, launch_seconds=0.5) == "memory"


def test_the_bound_refuses_senseless_figures() -> None:
    with pytest.raises(ValueError, match="above 0"):
        benchmark.classify_bound(128, **{**T4, "peak_tflops": 0.0})


def test_the_share_of_peak_is_a_ratio() -> None:
    assert benchmark.peak_share(result(1000, 2e9 / 4.05e12), 8.1) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="above 0"):
        benchmark.peak_share(result(1000, 1.0), 0.0)


def test_memory_of_a_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match="does not count the memory of a CPU"):
        memory_profiling.profile_training_memory(device="cpu")


def test_increases_count_from_zero_and_may_be_negative() -> None:
    increases = memory_profiling.stage_increases(profile([9] * 7, allocated=[1, 4, 9, 9, 7, 8, 5]))
    assert increases == dict(zip(STAGES, [1, 3, 5, 0, -2, 1, -3], strict=True))


def test_the_bottleneck_has_the_largest_peak_not_the_most_left_at_its_end() -> None:
    assert (
        memory_profiling.find_bottleneck(profile([1, 2, 3, 4, 9, 5, 5], allocated=[1, 2, 3, 4, 4, 5, 5])) == "backward"
    )


def test_of_equal_peaks_the_first_stage_is_the_bottleneck() -> None:
    assert memory_profiling.find_bottleneck(profile([1, 2, 7, 4, 7, 7, 5])) == "forward"


def test_the_profiler_counts_recorded_steps_only_and_sorts_by_time() -> None:
    big, small = torch.rand(200, 200), torch.rand(2, 2)

    def step() -> None:
        for _ in range(3):
            torch.mm(big, big)
        torch.exp(small)

    operations = profiler.profile_operations(step, device="cpu", steps=4, warmup=2)
    by_name = {operation.name: operation for operation in operations}
    assert (by_name["aten::mm"].calls, by_name["aten::exp"].calls) == (12, 4)
    assert operations[0].name == "aten::mm"
    assert 0 < by_name["aten::mm"].cpu_seconds < 30
    assert by_name["aten::mm"].device_seconds == 0
    times = [operation.cpu_seconds for operation in operations]
    assert times == sorted(times, reverse=True)


def test_the_profiler_refuses_senseless_numbers() -> None:
    for arguments in ({"steps": 0}, {"warmup": -1}):
        with pytest.raises(ValueError, match="steps start at 1"):
            profiler.profile_operations(lambda: None, device="cpu", **arguments)


def test_the_slowest_operations_are_ranked_by_the_time_that_matters() -> None:
    def operation(name: str, cpu: float, device: float) -> OperationTime:
        return OperationTime(name=name, calls=1, cpu_seconds=cpu, device_seconds=device)

    on_gpu = [operation("a", 3, 1), operation("b", 1, 5), operation("c", 2, 2)]
    assert [row.name for row in profiler.slowest(on_gpu, 2)] == ["b", "c"]
    on_cpu = [operation("a", 1, 0), operation("b", 3, 0)]
    assert [row.name for row in profiler.slowest(on_cpu)] == ["b", "a"]
    with pytest.raises(ValueError, match="count starts at 1"):
        profiler.slowest(on_cpu, 0)


def test_the_environment_of_a_machine_without_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it raises ImportError
    machine = environment.check_environment()
    assert (machine.device, machine.memory_bytes, machine.compute_capability, machine.driver) == (
        "cpu",
        None,
        None,
        None,
    )
    assert machine.torch == torch.__version__
    assert machine.device_name


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="there is no GPU"):
        environment.check_environment("cuda")


def test_plots_show_every_measurement(tmp_path: Path) -> None:
    comparisons = [comparison(size, size / 300) for size in (128, 512, 1024)]
    speedup = benchmark.plot_speedup(comparisons, tmp_path / "speedup.png")
    memory = memory_profiling.plot_memory([profile([2**20 * n for n in range(7)])] * 2, tmp_path / "memory.png")
    for path in (speedup, memory):
        with Image.open(path) as image:
            assert image.width > 600
            colors = image.convert("RGB").getcolors(2**24) or []
        assert len(colors) > 100, f"{path.name} is nearly blank"


def test_the_benchmark_on_the_cpu_alone_writes_its_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--device", "cpu", "--sizes", "16,32", "--out", str(tmp_path)]) == 0
    saved = load_json(tmp_path / "benchmark.json", MatmulResult)
    assert [entry.size for entry in saved.results] == [16, 32]
    assert not saved.provenance.simulated
    assert str(tmp_path / "benchmark.json") in capsys.readouterr().out


def test_the_environment_program_writes_what_it_found(tmp_path: Path) -> None:
    assert environment.main(["--device", "cpu", "--out", str(tmp_path)]) == 0
    (machine,) = load_json(tmp_path / "environment.json", Environment).results
    assert machine.device == "cpu"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sizes", "0"], "'0' is not a whole number from 1 on"),
        (["--sizes", "128,big"], "'big' is not"),
        (["--iterations", "-1"], "'-1' is not"),
        (["--speed", "max"], "unrecognized arguments"),
    ],
)
def test_bad_arguments_are_one_clear_error(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        benchmark.main(arguments)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def test_an_interrupted_benchmark_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", interrupt)
    with pytest.raises(KeyboardInterrupt):
        benchmark.main(["--device", "cpu", "--sizes", "8", "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
