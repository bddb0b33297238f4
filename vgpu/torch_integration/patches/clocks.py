"""`time.*`, `timeit.default_timer` and what programs bound of them at import, on virtual time.

The replacements are permanent objects that fall back to the real clock when no GPU is attached, so a module that was
imported while one was attached and kept `from time import perf_counter` stays right afterwards. Not here: `datetime`
and timeouts inside C code, which stay real.
"""

from __future__ import annotations

import sys
import time
import timeit
import types
from collections.abc import Callable
from typing import Any

import torch

from vgpu.runtime.attachment import attached
from vgpu.runtime.patching import PatchSet

# Whole seconds keep differences of readings exact to the same binary fraction in every run.
_MONOTONIC_START_SECONDS = 1000.0
_BUSY_START_SECONDS = 2.0
"""What importing PyTorch takes of a processor."""
_real = types.SimpleNamespace(**{name: getattr(time, name) for name in dir(time) if not name.startswith("_")})
_wall_start = [0.0]

# These really wait with `time.monotonic() + timeout`: on virtual time their timeouts would never pass.
_REALLY_WAITING = (
    "multiprocessing.connection", "multiprocessing.queues", "multiprocessing.managers", "multiprocessing.pool",
    "asyncio.base_events", "asyncio.events", "socketserver", "torch.multiprocessing.spawn",
    "torch.distributed.distributed_c10d", "torch.distributed._watchdog",
)  # fmt: skip
_CLOCKS = ("perf_counter", "monotonic", "time", "process_time", "thread_time")


_BUSY = ("process_time", "thread_time")
"""Clocks that stand while nothing is computed. That of a process, too, counts what the calling thread did."""


def _virtual(name: str) -> tuple[Callable[[], float], Callable[[], int]]:
    real, real_ns = getattr(_real, name), getattr(_real, name + "_ns")

    def start() -> float:
        if name in _BUSY:
            return _BUSY_START_SECONDS
        return _wall_start[0] if name == "time" else _MONOTONIC_START_SECONDS

    def read(gpu: Any) -> float:
        clock = gpu.clock.read_busy if name in _BUSY else gpu.clock.read
        passed: float = clock(gpu.spec.host.clock_read_seconds)
        return passed

    def clock() -> float:
        gpu = attached()
        return real() if gpu is None else start() + read(gpu)

    def clock_ns() -> int:
        gpu = attached()
        if gpu is None:
            return int(real_ns())
        return int(start()) * 1_000_000_000 + round(read(gpu) * 1e9)

    clock.__name__ = clock.__qualname__ = name
    clock_ns.__name__ = clock_ns.__qualname__ = name + "_ns"
    return clock, clock_ns


_pairs = {name: _virtual(name) for name in _CLOCKS}
_functions: dict[str, Callable[..., Any]] = {name: pair[0] for name, pair in _pairs.items()}
_functions |= {name + "_ns": pair[1] for name, pair in _pairs.items()}


def sleep(seconds: float) -> None:
    """`time.sleep` in virtual time."""
    gpu = attached()
    if gpu is None:
        _real.sleep(seconds)
        return
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    gpu.clock.sleep(seconds)


_functions["sleep"] = sleep


def begin() -> None:
    """Virtual wall-clock time begins now."""
    _wall_start[0] = float(int(_real.time()))


def install(patches: PatchSet) -> None:
    """Put the program on virtual time."""
    begin()
    replacements = {id(getattr(_real, name)): function for name, function in _functions.items()}
    for name, function in _functions.items():
        patches.set(time, name, function)
        patches.rebind(getattr(_real, name), function)
    patches.set(timeit, "default_timer", _functions["perf_counter"])
    for name in _REALLY_WAITING:
        module = sys.modules.get(name)
        if module is not None and getattr(module, "time", None) is time:
            patches.set(module, "time", _real)
    for function in (timeit.Timer.__init__, timeit.timeit, timeit.repeat):
        _patch_defaults(patches, function, replacements)
    timer = sys.modules.get("torch.utils.benchmark.utils.timer")
    if timer is not None and id(timer.timer) in replacements:
        # PyTorch 2.11 decides at import whether its clock waits for the GPU; it was imported where there was none.
        waiting = dict.fromkeys(replacements, _synchronised_clock)
        _patch_defaults(patches, timer.Timer.__init__, waiting)
        patches.set(timer, "timer", _synchronised_clock)


def _synchronised_clock() -> float:
    """What `torch.utils.benchmark` reads on a machine with a GPU."""
    torch.accelerator.synchronize()
    return timeit.default_timer()


def _patch_defaults(patches: PatchSet, function: Any, replacements: dict[int, Any]) -> None:
    """`timeit.Timer.__init__` bound the clock as a default argument."""
    defaults = getattr(function, "__defaults__", None)
    if defaults and any(id(value) in replacements for value in defaults):
        patches.set_attribute_of(function, "__defaults__", tuple(replacements.get(id(v), v) for v in defaults))
