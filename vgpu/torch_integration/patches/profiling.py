"""Replaces PyTorch's profiler with the virtual one, and keeps NVTX ranges.

Not here: the profiler itself (`vgpu.torch_integration.profiler`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.autograd
import torch.autograd.profiler
import torch.cuda
import torch.profiler
from torch.profiler import ProfilerActivity

from vgpu.runtime.attachment import attached
from vgpu.runtime.patching import PatchSet
from vgpu.torch_integration import profiler
from vgpu.torch_integration.patches.compilers import refuse

_OWN_REGION: type[Any] = torch.autograd.profiler.record_function
"""PyTorch's own class: inside another attachment, its name means that of the virtual GPU."""


def install(patches: PatchSet) -> None:
    """Replace the classes wherever they are bound."""
    autograd_profiler = torch.autograd.profiler
    patches.rebind(autograd_profiler.profile, profiler.AutogradProfile)
    _regions_made_before(patches)
    patches.rebind(autograd_profiler.record_function, profiler.record_function)
    patches.rebind(autograd_profiler.emit_nvtx, profiler.emit_nvtx)
    patches.set(autograd_profiler, "emit_itt", refuse("emit_itt"))
    both = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    for owner in (torch.autograd, autograd_profiler):
        patches.set_existing(owner, "_supported_activities", lambda: set(both))
    patches.set(torch.autograd, "_add_metadata_json", _add_metadata)
    patches.set_existing(torch.autograd, "_is_kineto_stopped", lambda: False)
    base = torch.profiler.profiler._KinetoProfile
    patches.set(base, "export_memory_timeline", profiler.export_memory_timeline)
    refused = refuse("execution traces (ExecutionTraceObserver)")
    patches.set(torch.profiler.ExecutionTraceObserver, "start", refused)
    _nvtx(patches)


def _regions_made_before(patches: PatchSet) -> None:
    """Regions that are older than the virtual GPU, such as a decorator's in a module that was imported before.

    The class of such a region is PyTorch's own. One that was entered before is left as it was entered.
    """
    own_enter, own_exit = _OWN_REGION.__enter__, _OWN_REGION.__exit__

    def enter(region: Any) -> Any:
        if attached() is None:
            return own_enter(region)
        virtual = profiler.record_function(region.name, region.args)
        vars(region).setdefault("_virtual_regions", []).append(virtual)
        virtual.__enter__()
        return region

    def leave(region: Any, *error: Any) -> None:
        entered = vars(region).get("_virtual_regions")
        if entered:
            entered.pop().__exit__(*error)
        else:
            own_exit(region, *error)

    patches.set(_OWN_REGION, "__enter__", enter)
    patches.set(_OWN_REGION, "__exit__", leave)


def _add_metadata(key: str, value: str) -> None:
    """What a program adds to the trace of the profile that is active."""
    gpu = attached()
    if gpu is not None and gpu.recorder is not None:
        try:
            gpu.recorder.metadata[key] = json.loads(value)
        except json.JSONDecodeError:
            gpu.recorder.metadata[key] = value


class _Ranges(threading.local):
    """The open NVTX ranges of the calling thread: (name, seconds)."""

    def __init__(self) -> None:
        self.open: list[tuple[str, float]] = []


def _close(name: str, begin: float) -> None:
    gpu = attached()
    if gpu is not None:
        if gpu.recorder is not None:
            gpu.recorder.region(name, begin)
        gpu.clock.end_region(name, begin)


def _now() -> float:
    gpu = attached()
    return gpu.clock.now if gpu is not None else 0.0


_NO_TRACKING = -2


def _nvtx(patches: PatchSet) -> None:
    """NVTX ranges appear in pictures and traces, as they would in Nsight Systems; they cost nothing.

    No tool listens, so they have no depth (`NVTX_NO_PUSH_POP_TRACKING`; seen on an H100).
    """
    ranges, started, numbers = _Ranges(), dict[int, tuple[str, float]](), itertools.count(1)

    def range_push(msg: str) -> int:
        ranges.open.append((str(msg), _now()))
        return _NO_TRACKING

    def range_pop() -> int:
        if ranges.open:
            _close(*ranges.open.pop())
        return _NO_TRACKING

    def range_start(msg: str) -> int:
        number = next(numbers)
        started[number] = (str(msg), _now())
        return number

    def range_end(range_id: int) -> None:
        if range_id in started:
            _close(*started.pop(range_id))

    def mark(msg: str) -> None:
        _close(str(msg), _now())

    @contextlib.contextmanager
    def named_range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        range_push(msg.format(*args, **kwargs))
        try:
            yield
        finally:
            range_pop()

    functions = {
        "range_push": range_push, "range_pop": range_pop, "range_start": range_start, "range_end": range_end,
        "mark": mark, "range": named_range,
    }  # fmt: skip
    for name, function in functions.items():
        patches.rebind(getattr(torch.cuda.nvtx, name), function)
    # Nsight's switches: there is nothing to switch.
    runtime = SimpleNamespace(cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0)
    for name in ("start", "stop"):
        patches.rebind(getattr(torch.cuda.profiler, name), lambda: None)
    patches.rebind(torch.cuda.cudart, lambda: runtime)
