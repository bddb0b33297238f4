"""What a program leaves out because it would not end: foreseen from smaller sizes, and told with its reason."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labkit.allowance import Allowance, processor_seconds
from labkit.results import AttentionResult, Provenance, load_json, save_json
from solutions.lab4_memory.lengths import measure_lengths, milliseconds, print_reasons

DONE = AttentionResult(
    device="cuda", method="tiled", backend="torch", dtype="float16", length=512, seconds=0.001, peak_bytes=1
)


class Clock:
    """Stands still except for what a test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def spend(allowance: Allowance, clock: Clock, kind: str, size: int, seconds: float) -> None:
    with allowance.running(kind, size):
        clock.now += seconds


def test_a_first_size_is_always_run() -> None:
    clock = Clock()
    allowance = Allowance(10, clock=clock)
    clock.now += 1000
    assert allowance.refusal("tiled", 512) is None


def test_one_size_tells_of_the_next_as_if_the_work_were_as_steep_as_it_can_be() -> None:
    clock = Clock()
    allowance = Allowance(10, clock=clock)
    spend(allowance, clock, "tiled", 512, 2.0)
    assert allowance.refusal("tiled", 1024) is None  # 4 x 2 s, and 8 s are left
    assert allowance.refusal("tiled", 1025) is not None


@pytest.mark.parametrize(("second", "foreseen"), [(2.0, 4), (3.0, 9), (4.0, 16), (1.0, 2), (9.0, 36)])
def test_two_sizes_tell_how_steep_the_work_is(second: float, foreseen: int) -> None:
    """From proportional to quadratic, whatever they say: the first one may pay for what is loaded once."""
    clock = Clock()
    allowance = Allowance(0, clock=clock)
    spend(allowance, clock, "tiled", 1024, 1.0)
    spend(allowance, clock, "tiled", 2048, second)
    reason = allowance.refusal("tiled", 4096)
    assert reason is not None
    assert reason.startswith(f"it would take some {foreseen} s of processor time, and 0 s of 0 s are left")


def test_another_kind_knows_nothing_of_it_and_what_is_spent_counts_for_all() -> None:
    clock = Clock()
    allowance = Allowance(10, clock=clock)
    spend(allowance, clock, "flash", 512, 1.0)
    spend(allowance, clock, "tiled", 512, 6.0)
    assert allowance.refusal("tiled", 1024) is not None
    assert allowance.refusal("standard", 16384) is None
    assert allowance.refusal("flash", 512) is None
    assert allowance.refusal("flash", 1024) is not None  # 4 s foreseen, 3 s left


def test_work_that_costs_nothing_is_never_refused() -> None:
    clock = Clock()
    allowance = Allowance(1, clock=clock)
    for size in (512, 1024):
        spend(allowance, clock, "flash", size, 0.0)
    assert allowance.refusal("flash", 10**9) is None


def burn(seconds: float) -> None:
    until = processor_seconds() + seconds
    while processor_seconds() < until:
        sum(range(1000))


def quadratic(called: list[tuple[str, int]]) -> Callable[..., list[AttentionResult]]:
    """Stands for a `benchmark_attention` whose tiles cut queries and keys, and whose first call loads libraries."""
    loaded: list[bool] = []

    def benchmark(
        lengths: Sequence[int], methods: Sequence[str], *, device: str, dtype: torch.dtype, iterations: int = 5
    ) -> list[AttentionResult]:
        if not loaded:
            loaded.append(True)
            burn(0.3)
        if iterations == 1:
            assert list(lengths) == [64]
            return [replace(DONE, device=device, method=method, length=64) for method in methods]
        (length,), (method,) = lengths, methods
        called.append((method, length))
        if method == "tiled":
            burn(0.02 * (length / 512) ** 2)
        return [replace(DONE, device=device, method=method, length=length)]

    return benchmark


def test_lengths_that_would_not_end_are_left_out_and_the_others_are_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    called: list[tuple[str, int]] = []
    lengths = (512, 4096, 1024, 2048, 16384)
    results = measure_lengths(quadratic(called), "sdpa", lengths, device="cuda", dtype=torch.float16, seconds=0.5)
    assert [(result.length, result.method) for result in results] == [
        (length, method) for length in lengths for method in ("standard", "flash", "tiled")
    ]
    left_out = {(result.method, result.length) for result in results if result.left_out is not None}
    assert left_out == {("tiled", 4096), ("tiled", 16384)}
    assert not left_out.intersection(called)
    for result in results:
        assert (result.seconds is None) == (result.peak_bytes is None) == (result.left_out is not None)
        assert milliseconds(result) == ("left out" if result.left_out else "1")
    print_reasons(results)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": it would take")[0] for line in lines] == [
        "left out: tiled, 4096 tokens",
        "left out: tiled, 16384 tokens",
    ]


def test_out_of_memory_is_not_left_out() -> None:
    assert milliseconds(replace(DONE, seconds=None, peak_bytes=None)) == "out of memory"


def test_the_reason_is_kept_with_the_results_and_files_from_before_are_read(tmp_path: Path) -> None:
    where = Provenance(
        device="cuda",
        device_name="T4",
        simulated=True,
        torch="2",
        python="3",
        peak_tflops=None,
        bandwidth_bytes_per_second=None,
        launch_seconds=None,
    )
    result = replace(DONE, seconds=None, peak_bytes=None, left_out="it would take long")
    path = save_json(tmp_path / "attention.json", [result], where)
    assert load_json(path, AttentionResult).results == (result,)
    text = path.read_text()
    path.write_text(text.replace(',\n      "left_out": "it would take long"', ""))
    assert path.read_text() != text
    assert load_json(path, AttentionResult).results == (replace(result, left_out=None),)


def test_the_clock_is_that_of_the_machine_also_on_a_virtual_gpu() -> None:
    import vgpu

    with vgpu.attach("T4"):
        before, virtual = processor_seconds(), time.process_time()
        burn(0.1)
        assert processor_seconds() - before > 0.09  # whole hundredths are told
        assert time.process_time() - virtual < 0.01  # a loop of Python's takes no virtual time
