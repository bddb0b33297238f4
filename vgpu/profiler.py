"""`torch.profiler` on virtual time: the same classes and tables, filled from the simulation.

`profile` is a subclass of PyTorch's, so schedules, steps and handlers are PyTorch's own code; only the tracing is
replaced. Tables and traces are marked as simulated. Not here: Python stacks, which are not recorded.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.profiler
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

from vgpu.device_queue import Kernel
from vgpu.state import attached

if TYPE_CHECKING:
    from vgpu.gpu import VirtualGPU

# Host time to open or close a region while a profile is active: modelled.
_REGION_SECONDS = 5e-7
_MARK = "Simulated by vgpu ({}): modelled times, nothing was measured"


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something the host did: an operation, a wait, or a named region. Seconds since attach."""

    name: str
    start: float
    end: float
    thread: int
    shapes: tuple[tuple[int, ...], ...] = ()
    kernel: Kernel | None = None
    memory_bytes: int = 0
    region: bool = False


class Recorder:
    """Collects what happens on a virtual GPU and its host while a profile is active."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self.gpu = gpu
        self.events: list[HostEvent] = []
        self._allocated = gpu.memory.settled().current("allocated_bytes")

    def _memory_change(self) -> int:
        allocated = self.gpu.memory.settled().current("allocated_bytes")
        change, self._allocated = allocated - self._allocated, allocated
        return change

    def kernel(self, kernel: Kernel, end: float) -> None:
        """An operation that launched a kernel (or a transfer) and returned at `end`."""
        self.events.append(
            HostEvent(
                kernel.name, kernel.launched_at, end, threading.get_ident(), kernel.shapes, kernel,
                self._memory_change(),
            )
        )  # fmt: skip

    def host(self, name: str, start: float, shapes: tuple[tuple[int, ...], ...] = ()) -> None:
        """Something that kept the host from `start` until now."""
        change = self._memory_change()
        self.events.append(HostEvent(name, start, self.gpu.clock.now, threading.get_ident(), shapes, None, change))

    def region(self, name: str, start: float) -> None:
        """A `record_function` block that began at `start` and ends now."""
        self.events.append(HostEvent(name, start, self.gpu.clock.now, threading.get_ident(), region=True))


class SimulatedEvents(EventList):
    """PyTorch's event list, whose tables say that they are simulated."""

    mark = ""

    def table(self, *args: Any, **kwargs: Any) -> str:
        """PyTorch's table, with a line that says where the numbers come from."""
        return f"{self.mark}\n{super().table(*args, **kwargs)}"

    def key_averages(self, *args: Any, **kwargs: Any) -> SimulatedEvents:
        """Averages by name, as PyTorch makes them."""
        averages = super().key_averages(*args, **kwargs)
        averages.__class__ = SimulatedEvents
        averages.mark = self.mark
        return averages  # type: ignore[no-any-return]


def to_events(recorder: Recorder, *, record_shapes: bool, profile_memory: bool) -> SimulatedEvents:
    """The recorded events as PyTorch's `FunctionEvent`s: one per operation, one more per kernel on the device."""
    found: list[FunctionEvent] = []
    for event in sorted(recorder.events, key=lambda item: (item.start, -item.end)):
        made = _function_event(
            len(found), event.name, event.thread, event.start, event.end, event.shapes if record_shapes else (),
            cpu_memory_usage=0, device_memory_usage=event.memory_bytes if profile_memory else 0,
            is_user_annotation=event.region, flops=int(event.kernel.flops) if event.kernel is not None else 0,
        )  # fmt: skip
        found.append(made)
        if event.kernel is not None:
            kernel, name = event.kernel, f"simulated_{event.name.removeprefix('aten::')}_kernel"
            made.append_kernel(name, 0, kernel.seconds * 1e6)
            found.append(
                _function_event(
                    len(found), name, kernel.stream, kernel.start, kernel.end, (), device_type=DeviceType.CUDA,
                    device_index=0,
                )
            )  # fmt: skip
    events = SimulatedEvents(found, use_device="cuda", profile_memory=profile_memory, with_flops=False)
    events.mark = _MARK.format(recorder.gpu.spec.name)
    events._build_tree()
    return events


def _function_event(
    number: int, name: str, thread: int, start: float, end: float, shapes: Any, **options: Any
) -> FunctionEvent:
    return FunctionEvent(
        id=number, name=name, thread=thread, start_us=start * 1e6, end_us=end * 1e6, fwd_thread=None, stack=[],
        input_shapes=[list(shape) for shape in shapes], scope=0, use_device="cuda", **options,
    )  # fmt: skip


_original_profile: Any = torch.profiler.profile


class profile(_original_profile):  # type: ignore[misc]  # noqa: N801 - PyTorch's name
    """`torch.profiler.profile` while a virtual GPU is attached."""

    _recorder: Recorder | None = None

    def prepare_trace(self) -> None:
        """Nothing to warm up."""

    def start_trace(self) -> None:
        """Begin to record."""
        gpu = attached()
        if gpu is None:
            raise RuntimeError("this profile belongs to a virtual GPU that is no longer attached")
        gpu.recorder = self._recorder = Recorder(gpu)

    def stop_trace(self) -> None:
        """Wait for the device, as the real profiler does, and stop recording."""
        gpu = attached()
        if gpu is not None:
            gpu.synchronize()
            gpu.recorder = None

    def events(self) -> SimulatedEvents:
        """Everything recorded since the last start of the trace."""
        if self._recorder is None:
            raise AssertionError("the profile has recorded nothing yet")
        return to_events(self._recorder, record_shapes=self.record_shapes, profile_memory=self.profile_memory)

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0, **options: Any
    ) -> SimulatedEvents:
        """Averages by name, and by shape if asked for."""
        return self.events().key_averages(group_by_input_shape, group_by_stack_n, **options)

    def export_chrome_trace(self, path: str) -> None:
        """Write a trace for chrome://tracing or Perfetto: host threads, device streams, memory."""
        if self._recorder is None:
            raise AssertionError("the profile has recorded nothing yet")
        Path(path).write_text(json.dumps(chrome_trace(self._recorder)), encoding="utf-8")

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Not recorded: the file is written empty, as PyTorch does without stacks."""
        Path(path).write_text("", encoding="utf-8")

    def add_metadata(self, key: str, value: str) -> None:
        """Accepted and ignored: the simulated trace has its own metadata."""

    add_metadata_json = add_metadata
    preset_metadata_json = add_metadata


def chrome_trace(recorder: Recorder) -> dict[str, Any]:
    """The Trace Event Format of what was recorded."""
    gpu = recorder.gpu
    entries: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in ((0, "host (simulated)"), (1, f"{gpu.spec.title} (simulated)"))
    ]
    for event in recorder.events:
        kind = "user_annotation" if event.region else "cpu_op"
        entries.append(_span(event.name, kind, 0, event.thread, event.start, event.end - event.start))
        if event.kernel is not None:
            kernel = event.kernel
            category = "gpu_memcpy" if kernel.name.startswith("Memcpy") else "kernel"
            span = _span(kernel.name, category, 1, kernel.stream, kernel.start, kernel.seconds)
            span["args"] = {"flops": kernel.flops, "bytes": kernel.bytes, "dtype": kernel.dtype}
            entries.append(span)
    if recorder.events:
        begin = min(event.start for event in recorder.events)
        for sample in gpu.memory_timeline:
            if sample.seconds >= begin:
                values = {"allocated": sample.allocated_bytes, "reserved": sample.reserved_bytes}
                entries.append({"ph": "C", "pid": 1, "name": "memory", "ts": sample.seconds * 1e6, "args": values})
    return {"simulated": True, "simulator": "vgpu", "gpu": gpu.spec.name, "schemaVersion": 1, "traceEvents": entries}


def _span(name: str, category: str, pid: int, tid: int, start: float, seconds: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start * 1e6, "dur": seconds * 1e6}


class record_function(contextlib.ContextDecorator):  # noqa: N801 - PyTorch's name
    """`torch.profiler.record_function`: a named region of host time."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self._starts: list[float] = []

    def __enter__(self) -> record_function:
        gpu = attached()
        self._starts.append(gpu.clock.now if gpu is not None else 0.0)
        if gpu is not None and gpu.recorder is not None:
            gpu.clock.advance(_REGION_SECONDS)
        return self

    def __exit__(self, *error: object) -> None:
        start, gpu = self._starts.pop(), attached()
        if gpu is not None and gpu.recorder is not None:
            gpu.clock.advance(_REGION_SECONDS)
            gpu.recorder.region(self.name, start)
