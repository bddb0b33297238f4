"""`torch.cuda.Stream` and `torch.Stream` on the queues of the virtual devices.

Semantics: CUDA C++ Programming Guide, "Streams". Not here: events (`vgpu.torch_integration.patches.events`), and the
queues themselves (`vgpu.device.queue`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import torch

from vgpu.runtime.gpu import QUERY_SECONDS
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.patches.backward_streams import change_streams
from vgpu.torch_integration.patches.events import Event, GenericEvent, gpu_of, of_another_device

_ORIGINAL: Any = torch.Stream


class GenericStream:
    """A queue of the device, as `torch.Stream` of any accelerator and as what `torch.cuda.Stream` is; also a context
    that makes it current."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """A stream of another device is PyTorch's own."""
        return of_another_device(_ORIGINAL, args, options) or super().__new__(cls)

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int = 1,
    ) -> None:
        self._gpu = gpu = gpu_of(device if device_index is None else device_index)
        self.stream_id = gpu.queue.pool_stream(gpu.clock.now, priority) if stream_id is None else stream_id
        if self.stream_id:
            gpu.machine.watched().follow_streams()
        lowest, greatest = Stream.priority_range()
        self._priority = min(max(priority, greatest), lowest)
        self.device, self.device_index, self.device_type = gpu.device, gpu.index, 1
        self._before: list[tuple[int, int]] = []

    @property
    def native_handle(self) -> int:
        """The handle; 0 is the default stream."""
        return self.stream_id

    def wait_event(self, event: GenericEvent) -> None:
        """Later work on this stream starts after the event."""
        event.wait(self)

    def wait_stream(self, stream: GenericStream) -> None:
        """Later work on this stream starts after what is queued on the other."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        """Mark the work queued so far; an event of `torch.cuda` is none of the generic kind (Event.cpp)."""
        if event is None:
            event = GenericEvent()
        elif not isinstance(event, GenericEvent) or isinstance(event, Event):
            raise RuntimeError("expected event to be a torch.Event object")
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

    def __enter__(self) -> GenericStream:
        self._before.append((THREAD.device, self._gpu.stream))
        set_stream(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        THREAD.device, stream_id = self._before.pop()
        change_streams({**THREAD.streams, self.device_index: stream_id})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (other.stream_id, other._gpu) == (self.stream_id, self._gpu)

    def __hash__(self) -> int:
        return hash(("vgpu.Stream", self.device_index, self.stream_id))

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle '{'Stream' if isinstance(self, Stream) else 'torch.Stream'}' object")

    def __repr__(self) -> str:
        return f"torch.Stream device_type=cuda, device_index={self.device_index}, stream_id={self.stream_id}"


class Stream(GenericStream):
    """`torch.cuda.Stream`."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Always on CUDA."""
        return object.__new__(cls)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority (c10/cuda/CUDAStream.h, `max_compile_time_stream_priorities`)."""
        return 0, -3

    @property
    def priority(self) -> int:
        """Within the range of priorities."""
        return self._priority

    @property
    def cuda_stream(self) -> int:
        """The handle; 0 is the default stream."""
        return self.stream_id

    def record_event(self, event: Any = None) -> Any:
        """Mark the work queued so far."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x} (simulated)>"


class StreamContext:
    """`torch.cuda.stream(s)`; `None` changes nothing."""

    def __init__(self, stream: GenericStream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, where)


def current_generic_stream(device: Any = None) -> GenericStream:
    """`torch.accelerator.current_stream`."""
    gpu = gpu_of(device)
    return GenericStream(gpu.index, stream_id=gpu.stream)


def current_stream(device: Any = None) -> Stream:
    """The calling thread's current stream of a device (default: the current one)."""
    gpu = gpu_of(device)
    return Stream(gpu.index, stream_id=gpu.stream)


def default_stream(device: Any = None) -> Stream:
    """The default stream of a device."""
    return Stream(device, stream_id=0)


def set_stream(stream: GenericStream | None) -> None:
    """Make a stream, and its device, current until further notice (`THCPStream_setStream` in torch/csrc/cuda)."""
    if stream is not None:
        THREAD.device = stream.device_index
        change_streams({**THREAD.streams, stream.device_index: stream.stream_id})


def let_wait(gpu: int, stream: int, other: int) -> None:
    """Let a stream of a GPU wait for what is queued on another one of its streams."""
    Stream(gpu, stream_id=stream).wait_stream(Stream(gpu, stream_id=other))


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
    patches.rebind(torch.Stream, GenericStream)
    patches.rebind(torch.Event, GenericEvent)
    patches.rebind(torch.cuda.StreamContext, StreamContext)
    patches.rebind(torch.cuda.stream, StreamContext)
    patches.rebind(torch.cuda.current_stream, current_stream)
    patches.rebind(torch.cuda.default_stream, default_stream)
    patches.rebind(torch.cuda.set_stream, set_stream)
    patches.set_existing(torch._C, "_accelerator_getStream", current_generic_stream)
    patches.set_existing(torch._C, "_accelerator_setStream", set_stream)
    if hasattr(torch._C._dynamo.utils, "get_current_stream"):  # TorchDynamo's own way to it
        patches.rebind(torch._C._dynamo.utils.get_current_stream, current_generic_stream)
    patches.set_existing(torch._C, "_cuda_setStream", _set_raw)
    patches.rebind(torch.cuda.ExternalStream, _ExternalStream)
