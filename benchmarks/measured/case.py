"""What a case is, and how times are taken: of the host, of the device, of both. Not here: any workload."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.published.timing import wall_seconds

Step = Callable[[], Any]
Make = Callable[[], Step]
"""Prepares tensors and returns what is timed."""
_ROUNDS, _HOST_CALLS, _KERNEL_CALLS = 5, 200, 10
_HOLD_SECONDS = 0.003


@dataclass(frozen=True)
class Case:
    """`run` returns a value in `unit`, or several by name; `precision` as `benchmarks.published.timing.allow_tf32`."""

    group: str
    name: str
    unit: str
    run: Callable[[], float | dict[str, float]]
    precision: str = ""


def simulated() -> bool:
    """Whether the GPU is virtual: then one round says all, for each would be the same."""
    import vgpu

    return vgpu.current() is not None


def host_seconds(step: Step) -> float:
    """Median over rounds of a call's host time; the device is idle before and never far behind."""
    rounds, calls = (1, _HOST_CALLS // 10) if simulated() else (_ROUNDS, _HOST_CALLS)
    for _ in range(10):
        step()
    seconds = [issue_seconds(step, calls) for _ in range(rounds)]
    torch.cuda.synchronize()
    return statistics.median(seconds)


def issue_seconds(step: Step, calls: int) -> float:
    """One round: host time until a call returns, on a device that is idle before."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def kernel_seconds(step: Step) -> float:
    """Median device time of a call; the calls wait in the queue, so no launch is in it."""
    rounds, calls = (1, 2) if simulated() else (_ROUNDS, _KERNEL_CALLS)
    for _ in range(3):
        step()
    return statistics.median(queued_seconds(step, calls) for _ in range(rounds))


def queued_seconds(step: Step, calls: int, hold_seconds: float = _HOLD_SECONDS) -> float:
    """One round: device time of a call. The device is held until the host has queued all of them."""
    rate = getattr(torch.cuda.get_device_properties(0), "clock_rate", 2_000_000) * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(hold_seconds * rate))
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / calls


def step_and_memory(make: Make) -> dict[str, float]:
    """Seconds of a step by the host's clock (median of rounds of five), and the bytes that it needs."""
    torch.cuda.reset_peak_memory_stats()
    step = make()
    rounds = [wall_seconds(step, 5, warmup=0 if number else 3) for number in range(1 if simulated() else 3)]
    return {
        "seconds": statistics.median(rounds),
        "allocated_bytes": torch.cuda.memory_allocated(),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }
