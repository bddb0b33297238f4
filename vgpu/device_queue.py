"""The device's time: kernels queued on streams, events, hiccups. Pure Python.

A kernel starts when its stream is free and the host has launched it (CUDA C++ Programming Guide, "Asynchronous
Concurrent Execution"); streams overlap. Not here: how long a kernel takes (`vgpu.cost`).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from vgpu.clock import HostClock

# Launches a stream takes before the host has to wait (observed on CUDA drivers since Volta; not documented by NVIDIA).
LAUNCH_QUEUE_DEPTH = 1024


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry of the device's timeline. Times in seconds since attach; `thread` is the launching thread's name."""

    name: str
    launched_at: float
    start: float
    seconds: float
    stream: int
    flops: float
    bytes: int
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    thread: str

    @property
    def end(self) -> float:
        """When the device is done with it."""
        return self.start + self.seconds


@dataclass(slots=True)
class Slowdown:
    """A hiccup waiting to happen: see `VirtualGPU.inject_slowdown`."""

    factor: float
    skip: int
    count: int
    min_flops: float
    name: str | None

    def applies(self, name: str, flops: float) -> bool:
        """Whether this kernel is hit; counts the kernels that match."""
        if self.count <= 0 or flops < self.min_flops or (self.name is not None and name != self.name):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.count -= 1
        return True


@dataclass(slots=True)
class _Stream:
    ready: float = 0.0
    pending: deque[float] = field(default_factory=lambda: deque[float](maxlen=LAUNCH_QUEUE_DEPTH))


class DeviceQueue:
    """The streams of one GPU and everything that ran on them."""

    def __init__(self, clock: HostClock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._streams: dict[int, _Stream] = {0: _Stream()}
        # What becomes a `Kernel` when somebody looks: making the objects would double the cost of a launch.
        self._entries: list[tuple[Any, ...]] = []
        self._kernels: list[Kernel] = []
        self.slowdowns: list[Slowdown] = []
        self.busy_seconds = 0.0
        self._busy_until = 0.0

    def new_stream(self) -> int:
        """Number of a fresh stream."""
        with self._lock:
            number = len(self._streams)
            self._streams[number] = _Stream()
            return number

    def launch(
        self,
        name: str,
        seconds: float,
        launch_seconds: float,
        stream: int = 0,
        flops: float = 0.0,
        bytes: int = 0,
        dtype: str = "float32",
        shapes: tuple[tuple[int, ...], ...] = (),
    ) -> float:
        """Queue a kernel: the host pays for the launch, the stream for the kernel. Returns when the kernel ends."""
        clock = self._clock.mine()
        launched_at = clock.now
        now = launched_at + launch_seconds
        with self._lock:
            if self.slowdowns:
                for slowdown in self.slowdowns:
                    if slowdown.applies(name, flops):
                        seconds *= slowdown.factor
            queue = self._streams[stream]
            pending, ready = queue.pending, queue.ready
            if len(pending) == LAUNCH_QUEUE_DEPTH and pending[0] > now:
                now = pending[0]
            clock.now = now
            start = ready if ready > now else now
            end = queue.ready = start + seconds
            pending.append(end)
            thread = threading.current_thread().name
            self._entries.append((name, launched_at, start, seconds, stream, flops, bytes, dtype, shapes, thread))
            if end > self._busy_until:
                self.busy_seconds += end - (start if start > self._busy_until else self._busy_until)
                self._busy_until = end
        return end

    @property
    def timeline(self) -> list[Kernel]:
        """Kernels and transfers in the order of their launch."""
        with self._lock:
            known = len(self._kernels)
            self._kernels += [Kernel(*entry) for entry in self._entries[known:]]
            return self._kernels

    def ready_at(self, stream: int | None = None) -> float:
        """When a stream (or, for None, every stream) has done all that is queued."""
        if stream is not None:
            return self._streams[stream].ready
        with self._lock:
            return max(queue.ready for queue in self._streams.values())

    def hold_until(self, stream: int, moment: float) -> None:
        """What comes next on the stream starts no earlier than `moment` (an event it waits for)."""
        with self._lock:
            queue = self._streams[stream]
            queue.ready = max(queue.ready, moment)

    def busy_between(self, begin: float, end: float) -> float:
        """Seconds within [begin, end] in which at least one kernel ran; only recent kernels are looked at."""
        busy, until = 0.0, end
        for kernel in reversed(self.timeline):
            if kernel.end < begin - (end - begin):
                break
            low, high = max(kernel.start, begin), min(kernel.end, until)
            if high > low:
                busy += high - low
                until = low
        return busy
