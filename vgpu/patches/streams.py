"""`torch.cuda.Stream` and `torch.cuda.Event` on the virtual device's queues.

Semantics: CUDA C++ Programming Guide, "Streams" and "Events"; texts from aten/src/ATen/cuda/CUDAEvent.h. Not here: the
queues themselves (`vgpu.device_queue`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from vgpu.gpu import QUERY_SECONDS, VirtualGPU
from vgpu.patches.base import PatchSet
from vgpu.residency import CUDA_DEVICE
from vgpu.state import THREAD, attached

# Host time of cudaEventRecord and cudaStreamWaitEvent: modelled.
_RECORD_SECONDS = 1e-6


def _gpu() -> VirtualGPU:
    gpu = attached()
    if gpu is None:
        raise RuntimeError("this stream or event belongs to a virtual GPU that is no longer attached")
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
        self.device = CUDA_DEVICE
        self._moment: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the work queued so far on `stream` (default: the current stream)."""
        gpu = _gpu()
        gpu.start()
        number = THREAD.stream if stream is None else stream.stream_id
        now = gpu.clock.advance(_RECORD_SECONDS)
        self._moment = max(gpu.queue.ready_at(number), now)

    def wait(self, stream: Stream | None = None) -> None:
        """Later work on `stream` starts after this event."""
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Whether the marked work is done; a look costs host time, so that polling ends."""
        gpu = _gpu()
        return self._moment is None or self._moment <= gpu.clock.advance(QUERY_SECONDS)

    def synchronize(self) -> None:
        """The host waits for the marked work."""
        gpu = _gpu()
        if self._moment is not None:
            gpu.clock.wait_until(self._moment)
        gpu.clock.advance(gpu.spec.synchronize_seconds)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of device time between this event and a later one; both must have been recorded and done."""
        if self._moment is None or end_event._moment is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if max(self._moment, end_event._moment) > _gpu().clock.now:
            raise RuntimeError(
                "Both events must be completed before calculating elapsed time: "
                "synchronize first (CUDA error: device not ready)"
            )
        return (end_event._moment - self._moment) * 1e3

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'uninitialized' if self._moment is None else hex(id(self))} (simulated)>"


class Stream:
    """A queue of the device (`torch.cuda.Stream`); also a context that makes it current, as `torch.Stream` is."""

    def __init__(self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **_: Any) -> None:
        gpu = _gpu()
        self.stream_id = gpu.queue.new_stream() if stream_id is None else stream_id
        self.priority = priority
        self.device, self.device_index, self.device_type = CUDA_DEVICE, 0, 1
        self._before: list[int] = []

    @property
    def cuda_stream(self) -> int:
        """The handle; 0 is the default stream."""
        return self.stream_id

    def wait_event(self, event: Event) -> None:
        """Later work on this stream starts after the event."""
        gpu = _gpu()
        gpu.clock.advance(_RECORD_SECONDS)
        if event._moment is not None:
            gpu.queue.hold_until(self.stream_id, event._moment)

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
        gpu = _gpu()
        return gpu.queue.ready_at(self.stream_id) <= gpu.clock.advance(QUERY_SECONDS)

    def synchronize(self) -> None:
        """The host waits for all queued work of this stream."""
        _gpu().synchronize(self.stream_id)

    def is_capturing(self) -> bool:
        """CUDA graphs are not supported, so never."""
        return False

    def __enter__(self) -> Stream:
        self._before.append(THREAD.stream)
        THREAD.stream = self.stream_id
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        THREAD.stream = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(("vgpu.Stream", self.stream_id))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.stream_id:#x} (simulated)>"


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
    """The calling thread's current stream."""
    return Stream(stream_id=THREAD.stream)


def default_stream(device: Any = None) -> Stream:
    """The default stream."""
    return Stream(stream_id=0)


def set_stream(stream: Stream | None) -> None:
    """Make a stream current until further notice."""
    if stream is not None:
        THREAD.stream = stream.stream_id


def install(patches: PatchSet) -> None:
    """Replace PyTorch's classes and the functions that give them out."""
    for name, value in {"Stream": Stream, "Event": Event}.items():
        patches.rebind(getattr(torch.cuda, name), value)
        patches.rebind(getattr(torch, name), _generic(value))
    patches.rebind(torch.cuda.StreamContext, StreamContext)
    patches.rebind(torch.cuda.stream, StreamContext)
    patches.rebind(torch.cuda.current_stream, current_stream)
    patches.rebind(torch.cuda.default_stream, default_stream)
    patches.rebind(torch.cuda.set_stream, set_stream)
    patches.set_existing(torch._C, "_accelerator_getStream", current_stream)
    patches.set_existing(torch._C, "_accelerator_setStream", set_stream)


def _generic(kind: type[Any]) -> type[Any]:
    """`torch.Stream(device=...)` and `torch.Event(device=...)`: the device comes first there."""

    class Generic(kind):  # type: ignore[misc]
        def __init__(self, device: Any = None, **options: Any) -> None:
            super().__init__(**options)

    Generic.__name__ = Generic.__qualname__ = kind.__name__
    return Generic
