"""Bytes and seconds as the programs measure them: by PyTorch's own counters and clocks.

Not here: any expectation about their size.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

MIB = 1 << 20
# Long against launches and the scheduler of a busy host, short for a suite.
LONG_SECONDS = 0.05
# About ten milliseconds on current GPUs.
_TRIAL_CYCLES = 20_000_000
_HEAD_START_CYCLES = 1_000_000


def rounded(*sizes: int) -> int:
    """Bytes that tensors of these sizes occupy: each a multiple of 512 (c10/cuda/CUDACachingAllocator.cpp)."""
    return sum(-(-size // 512) * 512 for size in sizes)


def allocated() -> int:
    """Bytes allocated now, after garbage has been collected."""
    gc.collect()
    return torch.cuda.memory_allocated()


@dataclass(frozen=True)
class Bytes:
    """What a call left allocated (its result is alive) and the most it had allocated, beyond what was there."""

    kept: int
    peak: int


def bytes_of(call: Callable[[], Any], *, warm: bool = True) -> Bytes:
    """Bytes of a call; called once before, so that library workspaces are there already."""
    if warm:
        call()
        torch.cuda.synchronize()
    before = allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return Bytes(kept, peak)


def cycles_for(seconds: float) -> int:
    """Cycles that keep the device busy for about `seconds`, by measurement."""
    torch.cuda._sleep(_TRIAL_CYCLES)
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.cuda._sleep(_TRIAL_CYCLES)
    torch.cuda.synchronize()
    return int(_TRIAL_CYCLES * seconds / (time.perf_counter() - start))


def spin(seconds: float = LONG_SECONDS) -> None:
    """Queue a kernel that keeps one multiprocessor busy for about `seconds` (the first call measures the clock)."""
    torch.cuda._sleep(cycles_for(seconds))


def host_seconds(call: Callable[[], Any], *, finish: bool = False) -> float:
    """Host time of a call, with the device idle before; `finish`: until the device is done with it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    if finish:
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    del result
    return elapsed


def device_seconds(call: Callable[[], Any], repeats: int = 2) -> float:
    """Least device time of a call between two events, after one call that does not count.

    The device is kept busy first, so that the host's time to launch is not in it.
    """
    call()
    best = float("inf")
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(_HEAD_START_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best


def waits(call: Callable[[], Any]) -> bool:
    """Whether the host waits inside `call` for a kernel queued before it."""
    call()
    cycles = cycles_for(LONG_SECONDS)
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.cuda._sleep(cycles)
    result = call()
    inside = time.perf_counter() - start
    torch.cuda.synchronize()
    whole = time.perf_counter() - start
    del result
    return inside > 0.5 * whole
