"""What a collective returns: work and futures in virtual time.

With NCCL `wait()` makes the current stream wait and returns at once; with gloo it holds the host (documentation of
torch.distributed, "Synchronous and asynchronous collective operations"). Not here: when a collective ends
(`vgpu.torch_integration.distributed.channel`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
import torch.futures

from vgpu.runtime.attachment import attached
from vgpu.runtime.gpu import QUERY_SECONDS, VirtualGPU
from vgpu.runtime.hazards.order import Point
from vgpu.runtime.host_clock import HostClock
from vgpu.runtime.thread_state import THREAD


class Ending:
    """The moment at which a collective is done, and who waits for it: a stream, or the host."""

    def __init__(
        self, clock: HostClock, gpu: VirtualGPU | None, moment: float, *, holds_host: bool, seen: Point | None = None
    ) -> None:
        self.clock = clock
        self.gpu = gpu
        self.moment = moment
        self.holds_host = holds_host
        self.seen = seen
        """What is over with it, if somebody watches (`vgpu.runtime.hazards`)."""

    def wait(self) -> None:
        """The current stream goes on after the end; the host too, where it is held."""
        if self.gpu is not None:
            self.gpu.queue.hold_until(self.gpu.stream, self.moment)
            self.gpu.queue.level()
            watch = self.gpu.machine.watch
            if watch is not None and self.seen is not None:
                watch.stream_waits(self.gpu, self.gpu.stream, self.seen)
        if self.holds_host:
            self.clock.wait_until(self.moment, "collective", "communication")

    def passed(self) -> bool:
        """Whether it is over; a look costs host time, so that polling ends."""
        return self.moment <= self.clock.advance(QUERY_SECONDS)


class VirtualFuture(torch.futures.Future):  # type: ignore[type-arg]
    """A completed future that knows when its value is there; callbacks run on a stream of their own, as with NCCL."""

    def __init__(self, value: Any, ending: Ending) -> None:
        super().__init__()
        self.ending = ending
        self.set_result(value)
        wait_after_backward(ending)

    def wait(self) -> Any:
        """The value; the current stream (or the host) waits for it."""
        self.ending.wait()
        return super().wait()

    def done(self) -> bool:
        """Whether the value is there by now."""
        return self.ending.passed()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """A future of `callback(self)`, which runs now, on a stream that waits for the value."""
        gpu = self.ending.gpu
        if gpu is None:
            self.ending.wait()
            return VirtualFuture(callback(self), Ending(self.ending.clock, None, self.ending.moment, holds_host=True))
        side = callback_stream(gpu)
        gpu.queue.hold_until(side, self.ending.moment)
        watch = gpu.machine.watch
        if watch is not None and self.ending.seen is not None:
            watch.stream_waits(gpu, side, self.ending.seen)
        with on_stream(gpu, side):
            result = callback(self)
        point = None if watch is None else watch.point(gpu, side)
        return VirtualFuture(
            result, Ending(self.ending.clock, gpu, gpu.queue.ready_at(side), holds_host=False, seen=point)
        )

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Run `callback(self)`, as `then` does, for its effect alone."""
        self.then(callback)


class VirtualWork(torch.distributed._Work):  # type: ignore[name-defined,misc]
    """The handle of a collective whose values have moved already; only its time may lie ahead."""

    def __init__(self, ending: Ending, outputs: Any = (), source: int = -1) -> None:
        super().__init__()
        self._ending = ending
        self._outputs = outputs
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """The current stream (with NCCL) or the host (with gloo, or in a barrier) waits for the end."""
        self._ending.wait()
        return True

    synchronize = block_current_stream = wait

    def is_completed(self) -> bool:
        """Whether the end has passed on the device's clock."""
        return self._ending.passed()

    def is_success(self) -> bool:
        """A collective that failed has raised at its call."""
        return True

    def exception(self) -> None:
        """None: see `is_success`."""

    def result(self) -> Any:
        """The tensors that it wrote."""
        return self._outputs

    def get_future(self) -> VirtualFuture:
        """A future of the tensors that it wrote."""
        return VirtualFuture(self._outputs, self._ending)

    get_future_result = get_future

    def source_rank(self) -> int:
        """The sender, of a message that was received."""
        return self._source

    _source_rank = source_rank


def wait_after_backward(ending: Ending) -> None:
    """DDP's reducer waits for its futures in C++, which no patch sees; the end of the backward pass waits instead."""
    if torch._C._current_graph_task_id() != -1:
        torch.autograd.Variable._execution_engine.queue_callback(ending.wait)


class on_stream:  # noqa: N801 - reads as a clause
    """What is launched inside goes to a stream of `gpu`."""

    def __init__(self, gpu: VirtualGPU, stream: int) -> None:
        self._gpu, self._stream = gpu, stream

    def __enter__(self) -> None:
        self._before = THREAD.streams.get(self._gpu.index)
        THREAD.streams[self._gpu.index] = self._stream

    def __exit__(self, *error: object) -> None:
        if self._before is None:
            THREAD.streams.pop(self._gpu.index, None)
        else:
            THREAD.streams[self._gpu.index] = self._before


def callback_stream(gpu: VirtualGPU) -> int:
    """The stream on which callbacks of futures run (ivalue::Future takes one from the pool; here always the same)."""
    stream: int | None = getattr(gpu, "_callback_stream", None)
    if stream is None:
        stream = gpu._callback_stream = gpu.queue.new_stream(gpu.clock.now)  # type: ignore[attr-defined]
    return stream


def require_gpu() -> VirtualGPU:
    """The current GPU."""
    gpu = attached()
    if gpu is None:
        raise RuntimeError("this process group belongs to a virtual GPU that is no longer attached")
    return gpu
