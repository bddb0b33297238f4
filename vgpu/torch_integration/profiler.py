"""`torch.profiler` and `torch.autograd.profiler` on virtual time: PyTorch's own classes, filled from the simulation.

`torch.profiler.profile` runs its own code (schedules, steps, handlers, tables) on top of
`torch.autograd.profiler.profile`; only that is replaced, by a subclass that records from the virtual GPU instead of
through Kineto. Tables and traces are marked as simulated. Not here: what is recorded while a profile is active
(`vgpu.torch_integration.profiler_events`, `vgpu.runtime.operations.composites`), CPU memory, hardware counters, and
autograd's own events (`AddBackward0`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.autograd.profiler
import torch.profiler
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import ProfilerActivity

from vgpu.runtime.attachment import attached
from vgpu.runtime.unsupported import unsupported
from vgpu.runtime.views import history, trace
from vgpu.torch_integration import profiler_rows
from vgpu.torch_integration.profiler_events import HostEvent, Recorder

# Host time to open or close a region while a profile is active: modelled.
_REGION_SECONDS = 5e-7
# The share of a launch's host time that the call of the CUDA runtime takes, at its end: modelled.
_CALL_SHARE = 0.5
_MARK = "Simulated by vgpu ({}): modelled times, nothing was measured"
_original: Any = torch.autograd.profiler.profile


class SimulatedEvents(EventList):
    """PyTorch's event list, whose tables say that they are simulated."""

    mark = ""

    def table(self, *args: Any, **kwargs: Any) -> str:
        """PyTorch's table, with a line that says where the numbers come from."""
        return f"{self.mark}\n{super().table(*args, **kwargs)}"

    def key_averages(self, *args: Any, **kwargs: Any) -> SimulatedEvents:
        """Averages by name, as PyTorch makes them."""
        return _marked(super().key_averages(*args, **kwargs), self.mark)


def _marked(events: Any, mark: str) -> SimulatedEvents:
    events.__class__ = SimulatedEvents
    events.mark = mark
    return events  # type: ignore[no-any-return]


class AutogradProfile(_original):  # type: ignore[misc]
    """`torch.autograd.profiler.profile` while a virtual GPU is attached; `torch.profiler.profile` runs on it too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        configuration = kwargs.get("experimental_config")
        if getattr(configuration, "profiler_metrics", None):
            raise unsupported("hardware counters (profiler_metrics)")
        super().__init__(*args, **kwargs)
        self.recorder: Recorder | None = None
        self._function_events: Any = None

    def _prepare_trace(self) -> None:
        self.entered = True
        self.trace_id = self.create_trace_id() if hasattr(self, "create_trace_id") else ""

    def _start_trace(self) -> None:
        gpu = attached()
        if gpu is None:
            raise RuntimeError("this profile needs the virtual GPU under which it was made; it is no longer attached")
        self.entered = True
        cuda = self.use_device == "cuda"
        self.recorder = Recorder(
            gpu,
            cpu=self.use_cpu,
            cuda=cuda,
            shapes=self.record_shapes,
            memory=self.profile_memory,
            stacks=self.with_stack,
        )
        self.recorder.attach()
        torch.autograd.profiler._run_on_profiler_start()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool | None:
        """Wait for the device, as the real profiler does, and stop recording."""
        if not self.enabled:
            return None
        if self.recorder is not None:
            self.recorder.detach()
        torch.autograd.profiler._run_on_profiler_stop()
        if self._function_events and self.acc_events:
            self._old_function_events = self._function_events
        self._function_events, self._needs_processing = None, True
        self.kineto_results: Any = self.recorder
        if self.acc_events:
            self._ensure_function_events()
        return False

    def _parse_kineto_results(self, result: Recorder, timeout_s: float | None = None) -> list[FunctionEvent]:
        return to_events(result, flops=self.with_flops)

    def _ensure_function_events(self) -> None:
        super()._ensure_function_events()
        recorder = self.recorder
        if recorder is not None and self._function_events is not None:
            # PyTorch's code for this mode looks for Kineto's CPU memory; there is none.
            note = "; CPU memory is not recorded" if self.profile_memory else ""
            _marked(self._function_events, _MARK.format(recorder.gpu.spec.name) + note)

    def export_chrome_trace(self, path: str, metadata: Any = None, *args: Any, **options: Any) -> None:
        """Write a trace for Perfetto: host threads, device streams, arrows, memory. A name in .gz is compressed."""
        if self.recorder is None:
            raise AssertionError("the profile has recorded nothing yet")
        if options.get("cuda_graph_annotations"):
            raise unsupported("annotations of CUDA graphs")
        trace.write(self.recorder.document(), path)

    def toggle_collection_dynamic(self, enabled: bool, activities: Iterable[ProfilerActivity]) -> None:
        """Record host operations or the device's kernels from now on, or do not."""
        if self.recorder is not None:
            chosen = set(activities)
            self.recorder.cpu = enabled if ProfilerActivity.CPU in chosen else self.recorder.cpu
            self.recorder.cuda = enabled if ProfilerActivity.CUDA in chosen else self.recorder.cuda


def to_events(recorder: Recorder, *, flops: bool) -> list[FunctionEvent]:
    """The recorded events as PyTorch's `FunctionEvent`s: of a launch the operations, the runtime's call, the kernel."""
    events: list[FunctionEvent] = []
    convolution: FunctionEvent | None = None
    for event in sorted(recorder.events, key=lambda item: (item.start, -item.end)):
        kernel = event.kernel
        if kernel is None:
            if event.on_host and event.name not in profiler_rows.UNSEEN:
                events.append(_host_event(len(events), event, event.name))
                if event.name == profiler_rows.WITH_CONVOLUTION:
                    convolution = events[-1]
            continue
        # What copies and collectives are called is the same on CUDA; other kernels' names are not known here.
        known = history.kernel_kind(kernel) in ("copy", "communication")
        name = kernel.name if known else f"simulated_{kernel.name.removeprefix('aten::')}_kernel"
        name = profiler_rows.MEMCPY if event.memcpy else name
        if event.on_host:
            if flops and event.name == profiler_rows.CONVOLUTION and convolution is not None:
                convolution.flops, convolution = int(kernel.flops), None
            first = len(events)
            for operation in profiler_rows.operations(kernel, event.name):
                counted = profiler_rows.flops(kernel, operation) if flops else None
                events.append(_host_event(len(events), event, operation, flops=counted))
            if event.on_device:
                events[-1].append_kernel(name, event.device, kernel.seconds * 1e6)
            # Memory counts where it is taken, and in what is around: a copy takes none.
            for row in events[first : first + 1] if event.name in profiler_rows.COPYING else events[first:]:
                row.device_memory_usage = event.memory_bytes
            if call := profiler_rows.runtime_call(kernel, memcpy=event.memcpy):
                begin = max(event.start, event.end - _CALL_SHARE * recorder.gpu.spec.launch_seconds)
                events.append(_function_event(len(events), call, event.thread, begin, event.end, None))
        if event.on_device:
            events.append(
                _function_event(
                    len(events), name, kernel.stream, kernel.start, kernel.end, None, device_type=DeviceType.CUDA,
                    device_index=event.device, device_resource_id=kernel.stream,
                )
            )  # fmt: skip
    return events


def _host_event(number: int, event: HostEvent, name: str, *, flops: int | None = None) -> FunctionEvent:
    used = 0 if event.kernel is not None else event.memory_bytes
    return _function_event(
        number, name, event.thread, event.start, event.end, event, device_memory_usage=used,
        is_user_annotation=event.region, flops=flops,
    )  # fmt: skip


def _function_event(
    number: int, name: str, thread: int, start: float, end: float, event: HostEvent | None, **options: Any
) -> FunctionEvent:
    shapes = event.shapes if event is not None else ()
    # PyTorch counts all steps as one row of its tables; in the trace they keep their numbers.
    row = "ProfilerStep*" if name.startswith("ProfilerStep#") else name
    return FunctionEvent(
        id=number, name=row, trace_name=name, overload_name="", thread=thread, start_us=start * 1e6, end_us=end * 1e6,
        fwd_thread=None, stack=list(event.stack) if event is not None else [],
        input_shapes=[list(shape) for shape in shapes], scope=0, use_device="cuda", cpu_memory_usage=0, **options,
    )  # fmt: skip


class record_function(contextlib.ContextDecorator):  # noqa: N801 - PyTorch's name
    """`torch.profiler.record_function`: a named region of host time, kept in the history with or without a profile."""

    __module__ = "torch.autograd.profiler"  # what TorchDynamo prints

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self.args = args
        self._starts: list[float] = []

    def __enter__(self) -> record_function:
        gpu = attached()
        self._starts.append(gpu.clock.now if gpu is not None else 0.0)
        if gpu is not None and gpu.recorder is not None:
            gpu.clock.advance(_REGION_SECONDS)
        return self

    def __exit__(self, *error: object) -> None:
        start, gpu = self._starts.pop(), attached()
        if gpu is None:
            return
        if gpu.recorder is not None:
            gpu.clock.advance(_REGION_SECONDS)
            gpu.recorder.region(self.name, start)
        gpu.clock.end_region(self.name, start)

    def _call_end_callbacks_on_future(self, future: Any) -> Any:
        return future


class emit_nvtx:  # noqa: N801 - PyTorch's name
    """`torch.autograd.profiler.emit_nvtx`: it waits, as CUDA's does; every operation is in the history anyway."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled = enabled

    def __enter__(self) -> emit_nvtx | None:
        if self.enabled:
            torch.cuda.synchronize()
        return self if self.enabled else None

    def __exit__(self, *error: object) -> None:
        if self.enabled:
            torch.cuda.synchronize()


def export_memory_timeline(profile: Any, path: str | os.PathLike[str], device: str | None = None) -> None:
    """`torch.profiler.profile.export_memory_timeline`: the memory of the profile's time by category.

    .json and .json.gz hold [times in microseconds, [0, bytes by category]] as PyTorch writes them; .html a picture.
    Raises Unsupported for raw events, which have no counterpart here.
    """
    missing = [name for name in ("record_shapes", "profile_memory", "with_stack") if not getattr(profile, name)]
    if missing:
        raise ValueError(f"{', '.join(f'{name}=True' for name in missing)} required for memory profiling.")
    recorder = getattr(profile.profiler, "recorder", None)
    if recorder is None:
        raise AssertionError("the profile has recorded nothing yet")
    if str(path).endswith("raw.json.gz"):
        raise unsupported("raw memory events (.raw.json.gz)")
    recorder.export_memory(path, torch.device(device or "cuda:0").index or 0)
