"""`torch.cuda.Stream` and `torch.cuda.Event` on the queues of the virtual devices.

Semantics: CUDA C++ Programming Guide, "Streams" and "Events"; texts from c10/cuda/CUDAEvent.h. Not here: the
queues themselves (`vgpu.device.queue`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from vgpu.device.timestamps import Later
from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.gpu import QUERY_SECONDS, VirtualGPU
from vgpu.runtime.hazards.order import Point
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.devices import cuda_error, place

# Host time of cudaEventRecord and cudaStreamWaitEvent: modelled.
_RECORD_SECONDS = 1e-6


def _machine() -> Machine:
    machine = attached_machine()
    if machine is None:
        raise RuntimeError("this stream or event belongs to a virtual GPU that is no longer attached")
    return machine


def _gpu(device: Any = None) -> VirtualGPU:
    """The GPU of a device argument; the current one for None and negative numbers."""
    machine = _machine()
    if device is None or (isinstance(device, int) and device < 0):
        return machine.gpus[THREAD.device]
    gpu = place(machine, device)
    if gpu is None:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return gpu


class Event:
    """A point in a stream (`torch.cuda.Event`). Times are virtual."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        **_: Any,
    ) -> None:
        self.enable_timing = enable_timing
        self._gpu: VirtualGPU | None = None
        self._point: float | Later | None = None
        self._seen: Point | None = None
        """What is over with it, if somebody watched when it was recorded."""
        self._captured: Point | None = None
        """The same, in the CUDA graph whose capture recorded it."""
        self._external = external

    @property
    def event_id(self) -> int:
        """Its handle; 0 before it is recorded."""
        return 0 if self._gpu is None else id(self)

    cuda_event = event_id

    @property
    def device(self) -> torch.device | None:
        """The device of the stream that recorded it first; None before."""
        return None if self._gpu is None else self._gpu.device

    @property
    def _moment(self) -> float | None:
        """When it is over; None before it is recorded."""
        point = self._point
        if isinstance(point, Later):
            point = self._point = point.seconds
        return point

    def record(self, stream: Stream | None = None) -> None:
        """Mark the work queued so far on `stream` (default: the current stream)."""
        gpu = _gpu(None if stream is None else stream.device_index)
        if self._gpu is not None and self._gpu is not gpu:
            raise RuntimeError(f"Event device {self._gpu.index} does not match recording stream's device {gpu.index}.")
        self._gpu = gpu
        gpu.start()
        gpu.settle()
        number = gpu.stream if stream is None else stream.stream_id
        now = gpu.clock.advance(_RECORD_SECONDS)
        self._point = gpu.queue.event(number, now)
        watch, capture = gpu.machine.watch, THREAD.capture
        self._seen = None if watch is None else watch.point(gpu, number)
        self._captured = None if capture is None or self._external else capture.point(gpu, number)

    def wait(self, stream: Stream | None = None) -> None:
        """Later work on `stream` starts after this event."""
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Whether the marked work is done; a look costs host time, so that polling ends."""
        self._refuse_captured()
        is_over = self._moment is None or self._moment <= _machine().clock.advance(QUERY_SECONDS)
        if is_over and self._moment is not None:
            self._was_waited_for()
        if self._gpu is not None:
            self._gpu.require_sound()
        return is_over

    def _refuse_captured(self) -> None:
        """An event of a graph is no moment (CUDA Runtime API, cudaErrorCapturedEvent)."""
        if self._captured is not None:
            text = "operation not permitted on an event last recorded in a capturing stream"
            if THREAD.capture is not None:
                THREAD.capture.require_none(text)
            raise cuda_error(text)

    def _was_waited_for(self) -> None:
        watch = _machine().watch
        if watch is not None:
            watch.host_waits_for_event(self._seen)

    def synchronize(self) -> None:
        """The host waits for the marked work."""
        machine = _machine()
        self._refuse_captured()
        if self._moment is not None:
            machine.clock.wait_until(self._moment, "cudaEventSynchronize")
            self._was_waited_for()
        machine.clock.advance(machine.spec.synchronize_seconds, "synchronize")
        if self._gpu is not None:
            self._gpu.require_sound()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of device time between this event and a later one; both must have been recorded and done."""
        if self._moment is None or end_event._moment is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if max(self._moment, end_event._moment) > _machine().clock.now:
            raise RuntimeError(
                "Both events must be completed before calculating elapsed time: "
                "synchronize first (CUDA error: device not ready)"
            )
        if self._gpu is not end_event._gpu:
            raise cuda_error("invalid resource handle")
        return (end_event._moment - self._moment) * 1e3

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'uninitialized' if self._point is None else hex(id(self))} (simulated)>"


class GenericEvent(Event):
    """`torch.Event(device=...)`: the device comes first there, and only its type counts."""

    def __init__(self, device: Any = None, **options: Any) -> None:
        super().__init__(**options)

    @property
    def device(self) -> torch.device:
        """The device that recorded it; before, a device without an index."""
        return super().device or torch.device("cuda")


class Stream:
    """A queue of the device (`torch.cuda.Stream`); also a context that makes it current, as `torch.Stream` is."""

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        **_: Any,
    ) -> None:
        self._gpu = gpu = _gpu(device if device_index is None else device_index)
        self.stream_id = gpu.queue.pool_stream(gpu.clock.now, priority) if stream_id is None else stream_id
        if self.stream_id:
            gpu.machine.watched().follow_streams()
        self.priority = priority
        self.device, self.device_index, self.device_type = gpu.device, gpu.index, 1
        self._before: list[tuple[int, int]] = []

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority (c10/cuda/CUDAStream.h, `max_compile_time_stream_priorities`)."""
        return 0, -3

    @property
    def cuda_stream(self) -> int:
        """The handle; 0 is the default stream."""
        return self.stream_id

    def wait_event(self, event: Event) -> None:
        """Later work on this stream starts after the event."""
        gpu = self._gpu
        gpu.clock.advance(_RECORD_SECONDS)
        capture = THREAD.capture
        if event._point is not None:
            if capture is not None and capture.stream_waits(
                gpu, self.stream_id, event._captured, external=event._external
            ):
                return
            gpu.queue.hold_until(self.stream_id, event._point)
            if gpu.machine.watch is not None:
                gpu.machine.watch.stream_waits(gpu, self.stream_id, event._seen)

    def wait_stream(self, stream: Stream) -> None:
        """Later work on this stream starts after what is queued on the other."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Mark the work queued so far."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all queued work is done."""
        gpu = self._gpu
        is_idle = gpu.queue.ready_at(self.stream_id) <= gpu.clock.advance(QUERY_SECONDS)
        if is_idle and gpu.machine.watch is not None:
            gpu.machine.watch.host_waits(gpu, self.stream_id)
        gpu.require_sound()
        return is_idle

    def synchronize(self) -> None:
        """The host waits for all queued work of this stream."""
        self._gpu.report_wait()
        self._gpu.synchronize(self.stream_id)

    def is_capturing(self) -> bool:
        """Whether the calling thread captures a CUDA graph on it."""
        return THREAD.capture is not None and bool(THREAD.capture.takes(self._gpu, self.stream_id))

    def __enter__(self) -> Stream:
        self._before.append((THREAD.device, self._gpu.stream))
        set_stream(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        THREAD.device, THREAD.streams[self.device_index] = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (other.stream_id, other._gpu) == (self.stream_id, self._gpu)

    def __hash__(self) -> int:
        return hash(("vgpu.Stream", self.device_index, self.stream_id))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x} (simulated)>"


class StreamContext:
    """`torch.cuda.stream(s)`; `None` changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, where)


def current_stream(device: Any = None) -> Stream:
    """The calling thread's current stream of a device (default: the current one)."""
    gpu = _gpu(device)
    return Stream(gpu.index, stream_id=gpu.stream)


def default_stream(device: Any = None) -> Stream:
    """The default stream of a device."""
    return Stream(device, stream_id=0)


def set_stream(stream: Stream | None) -> None:
    """Make a stream, and its device, current until further notice (`THCPStream_setStream` in torch/csrc/cuda)."""
    if stream is not None:
        THREAD.device = stream.device_index
        THREAD.streams[stream.device_index] = stream.stream_id


def _set_raw(stream_id: int, device_index: int, device_type: int = 1) -> None:
    set_stream(Stream(stream_id=stream_id, device_index=device_index))


class _ExternalStream(Stream):
    """A stream that another library made: there is none here."""

    def __init__(self, stream_ptr: int, device: Any = None, **_: Any) -> None:
        raise unsupported("streams of other libraries")


def install(patches: PatchSet) -> None:
    """Replace PyTorch's classes and the functions that give them out."""
    patches.rebind(torch.cuda.Stream, Stream)
    patches.rebind(torch.cuda.Event, Event)
    patches.rebind(torch.Stream, Stream)
    patches.rebind(torch.Event, GenericEvent)
    patches.rebind(torch.cuda.StreamContext, StreamContext)
    patches.rebind(torch.cuda.stream, StreamContext)
    patches.rebind(torch.cuda.current_stream, current_stream)
    patches.rebind(torch.cuda.default_stream, default_stream)
    patches.rebind(torch.cuda.set_stream, set_stream)
    patches.set_existing(torch._C, "_accelerator_getStream", current_stream)
    patches.set_existing(torch._C, "_accelerator_setStream", set_stream)
    patches.set_existing(torch._C, "_cuda_setStream", _set_raw)
    patches.rebind(torch.cuda.ExternalStream, _ExternalStream)
