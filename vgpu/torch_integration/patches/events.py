"""`torch.cuda.Event` and `torch.Event` on the queues of the virtual devices.

Semantics: CUDA C++ Programming Guide, "Events"; texts from c10/cuda/CUDAEvent.h and torch/csrc/Event.cpp. Not here:
streams (`vgpu.torch_integration.patches.streams`).
"""

from __future__ import annotations

from typing import Any, Self

import torch

from vgpu.device.timestamps import Later
from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.gpu import QUERY_SECONDS, VirtualGPU
from vgpu.runtime.hazards.order import Point
from vgpu.runtime.machine import Machine
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.devices import cuda_error, place

_ORIGINAL: Any = torch.Event
# Host time of cudaEventRecord and cudaStreamWaitEvent: modelled.
RECORD_SECONDS = 1e-6


def machine_of_thread() -> Machine:
    machine = attached_machine()
    if machine is None:
        raise RuntimeError("this stream or event belongs to a virtual GPU that is no longer attached")
    return machine


def gpu_of(device: Any = None) -> VirtualGPU:
    """The GPU of a device argument; the current one for None and negative numbers."""
    machine = machine_of_thread()
    if device is None or (isinstance(device, int) and device < 0):
        return machine.gpus[THREAD.device]
    gpu = place(machine, device)
    if gpu is None:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return gpu


def of_another_device(original: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """`torch.Stream("cpu")`: PyTorch's own object; None for one of ours."""
    device = options.get("device", args[0] if args else None)
    if not isinstance(device, (str, torch.device)) or torch.device(device).type == "cuda":
        return None
    return original(*args, **options)


class GenericEvent:
    """A point in a stream, as `torch.Event` of any accelerator and as what `torch.cuda.Event` is. Times are virtual."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """An event of another device is PyTorch's own."""
        return of_another_device(_ORIGINAL, args, options) or super().__new__(cls)

    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        if not isinstance(device, (str, int, torch.device, type(None))) or isinstance(device, bool):
            kind = type(device).__name__
            raise TypeError(f"Event(): argument 'device' (position 1) must be torch.device, not {kind}")
        self.enable_timing = enable_timing
        self._gpu: VirtualGPU | None = None
        self._point: float | Later | None = None
        self._seen: Point | None = None
        """What is over with it, if somebody watched when it was recorded."""
        self._captured: Point | None = None
        """The same, in the CUDA graph whose capture recorded it."""
        self._external = False

    @property
    def event_id(self) -> int:
        """Its handle; 0 before it is recorded."""
        return 0 if self._gpu is None else id(self)

    @property
    def device(self) -> torch.device | None:
        """The device of the stream that recorded it first; before, a device without an index."""
        return torch.device("cuda") if self._gpu is None else self._gpu.device

    @property
    def _moment(self) -> float | None:
        """When it is over; None before it is recorded."""
        point = self._point
        if isinstance(point, Later):
            point = self._point = point.seconds
        return point

    def record(self, stream: Any = None) -> None:
        """Mark the work queued so far on `stream` (default: the current stream)."""
        if stream is not None and not hasattr(stream, "stream_id"):
            raise RuntimeError("expected stream to be a torch.Stream or torch.cuda.Stream object")
        gpu = gpu_of(None if stream is None else stream.device_index)
        if self._gpu is not None and self._gpu is not gpu:
            raise RuntimeError(f"Event device {self._gpu.index} does not match recording stream's device {gpu.index}.")
        self._gpu = gpu
        gpu.start()
        gpu.settle()
        number = gpu.stream if stream is None else stream.stream_id
        now = gpu.clock.advance(RECORD_SECONDS)
        self._point = gpu.queue.event(number, now)
        watch, capture = gpu.machine.watch, THREAD.capture
        self._seen = None if watch is None else watch.point(gpu, number)
        self._captured = None if capture is None or self._external else capture.point(gpu, number)

    def wait(self, stream: Any = None) -> None:
        """Later work on `stream` (default: the current stream) starts after this event."""
        gpu = gpu_of(None if stream is None else stream.device_index)
        number = gpu.stream if stream is None else stream.stream_id
        gpu.clock.advance(RECORD_SECONDS)
        if self._point is None:
            return
        capture = THREAD.capture
        if capture is not None and capture.stream_waits(gpu, number, self._captured, external=self._external):
            return
        gpu.queue.hold_until(number, self._point)
        if gpu.machine.watch is not None:
            gpu.machine.watch.stream_waits(gpu, number, self._seen)

    def query(self) -> bool:
        """Whether the marked work is done; a look costs host time, so that polling ends."""
        self._refuse_captured()
        is_over = self._moment is None or self._moment <= machine_of_thread().clock.advance(QUERY_SECONDS)
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
        watch = machine_of_thread().watch
        if watch is not None:
            watch.host_waits_for_event(self._seen)

    def synchronize(self) -> None:
        """The host waits for the marked work."""
        machine = machine_of_thread()
        self._refuse_captured()
        if self._moment is not None:
            machine.clock.wait_until(self._moment, "cudaEventSynchronize")
            self._was_waited_for()
        machine.clock.advance(machine.spec.synchronize_seconds, "synchronize")
        if self._gpu is not None:
            self._gpu.require_sound()

    def elapsed_time(self, end_event: GenericEvent) -> float:
        """Milliseconds of device time between this event and a later one; both must have been recorded and done."""
        if not isinstance(end_event, GenericEvent) or isinstance(end_event, Event) is not isinstance(self, Event):
            name = "torch.cuda.Event" if isinstance(self, Event) else "torch.Event"
            raise RuntimeError(f"expected other to be a {name} object")
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._moment is None or end_event._moment is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if max(self._moment, end_event._moment) > machine_of_thread().clock.now:
            raise RuntimeError(
                "Both events must be completed before calculating elapsed time: "
                "synchronize first (CUDA error: device not ready)"
            )
        if self._gpu is not end_event._gpu:
            raise cuda_error("invalid resource handle")
        return (end_event._moment - self._moment) * 1e3

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle '{'Event' if isinstance(self, Event) else 'torch.Event'}' object")

    def __repr__(self) -> str:
        index, timing = -1 if self._gpu is None else self._gpu.index, int(self.enable_timing)
        return f"torch.Event device_type=cuda, device_index={index}, event_flag={timing}, event_id={self.event_id}"


class Event(GenericEvent):
    """`torch.cuda.Event`."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)
        self._external = external

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Always on CUDA."""
        return object.__new__(cls)

    @property
    def cuda_event(self) -> int:
        """The handle; 0 before it is recorded."""
        return self.event_id

    @property
    def device(self) -> torch.device | None:
        """The device of the stream that recorded it first; None before."""
        return None if self._gpu is None else self._gpu.device

    def ipc_handle(self) -> bytes:
        """Another process would wait for it."""
        raise unsupported("sharing GPU tensors with another process", "torch.cuda.Event.ipc_handle")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Event:
        """An event of another process."""
        raise unsupported("sharing GPU tensors with another process", "torch.cuda.Event.from_ipc_handle")

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'uninitialized' if self._point is None else hex(id(self))} (simulated)>"
