"""The device's time: work queued on streams, hiccups, and the record of it all.

A kernel starts when its stream is free and the host has launched it (CUDA C++ Programming Guide, "Asynchronous
Concurrent Execution"). Streams overlap, except for what needs the same part of the device. Priorities change nothing: a
kernel's place is found when it is launched. Not here: how long a kernel takes (`vgpu.device.pricing`), and the host's
time, which moves on by itself and comes with each entry.
"""

from __future__ import annotations

import abc
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from vgpu.device import cost
from vgpu.device.intervals import Intervals
from vgpu.device.kernel_work import ENGINES, KernelWork, Programs
from vgpu.device.pricing import Pricing
from vgpu.device.timestamps import Later, no_earlier

# Launches a stream takes before the host has to wait (observed on CUDA drivers since Volta; not documented by NVIDIA).
LAUNCH_QUEUE_DEPTH = 1024
# A program's streams come from pools, one per priority, and are handed out in turn (c10/cuda/CUDAStream.cpp,
# kStreamsPerPool).
STREAMS_PER_POOL = 32
ON_HOST = "host "
"""In front of the name of a product on CPU tensors, which hiccups of the host alone hit."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry of the device's timeline. Times in seconds since attach; `thread` is the launching thread's name.

    `host_seconds` is how long the launch kept that thread busy.
    """

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
    host_seconds: float = 0.0
    programs: Programs | None = None
    """Of a program's own kernel, if somebody watched it."""

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
    on_host: bool = False

    def applies(self, name: str, flops: float) -> bool:
        """Whether this kernel is hit, or this product of the host's; counts those that match."""
        if self.count <= 0 or flops < self.min_flops or (self.name is not None and name != self.name):
            return False
        if name.startswith(ON_HOST) != self.on_host:
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


class Observer(Protocol):
    """Somebody who writes down what a queue is asked (`vgpu.recording`)."""

    def opened(self, gpu: int, stream: int) -> None:
        """A stream was made."""

    def submitted(self, gpu: int, stream: int, work: KernelWork, end: float, host_seconds: float) -> float:
        """An entry was queued; the answer is `end`, under a name by which the observer knows it again."""

    def levelled(self, gpu: int) -> None:
        """A device's work has waited for other ranks."""

    def held(self, gpu: int, stream: int, moment: float) -> None:
        """A stream waits for a moment."""


class Queue(abc.ABC):
    """What a program's side needs of the streams of one GPU, whether they are here or in a process of their own."""

    def __init__(self, pricing: Pricing, index: int = 0) -> None:
        self.pricing = pricing
        self.observer: Observer | None = None
        self.has_several_streams = False
        """Whether there is a stream in addition to the default one."""
        self._index = index
        # Priority -> the streams of its pool, the next one to hand out first.
        self._pools: dict[int, deque[int]] = {}

    @abc.abstractmethod
    def new_stream(self, now: float) -> int:
        """Number of a fresh stream, made when the host's time is `now`."""

    def pool_stream(self, now: float, priority: int = 0) -> int:
        """Number of the pool's next stream: a fresh one at first, later one that was handed out before."""
        pool = self._pools.setdefault(min(priority, 0), deque())
        if len(pool) < STREAMS_PER_POOL:
            pool.append(self.new_stream(now))
        else:
            pool.rotate(-1)
        return pool[-1]

    @abc.abstractmethod
    def submit(
        self,
        work: KernelWork,
        stream: int,
        launched_at: float,
        host_seconds: float,
        thread: str,
        seconds: float | None = None,
    ) -> float:
        """Queue an entry that a thread began to launch at `launched_at`, which took `host_seconds`.

        `seconds` are those that it takes, hiccups included, where they are known already. Returns when the launch
        returns, which is later where the stream's queue is full.
        """

    @abc.abstractmethod
    def slowed(self, name: str, seconds: float, flops: float = 0.0) -> float:
        """How long a kernel takes with the hiccups that hit it; they count it as one launch."""

    @abc.abstractmethod
    def slow_down(self, slowdown: Slowdown) -> None:
        """A hiccup to come."""

    @abc.abstractmethod
    def ready_at(self, stream: int | None = None) -> float:
        """When a stream (or, for None, every stream) has done all that is queued."""

    @abc.abstractmethod
    def event(self, stream: int, now: float) -> float | Later:
        """The moment at which what is queued on a stream is done, no earlier than `now`."""

    @abc.abstractmethod
    def hold_until(self, stream: int, moment: float | Later) -> None:
        """What comes next on the stream starts no earlier than `moment` (an event it waits for)."""

    @abc.abstractmethod
    def slowest_is_late_by(self, ranks: int) -> float:
        """Seconds by which the slowest of `ranks` equal ranks is behind this one, from all it did since `level`."""

    @abc.abstractmethod
    def level(self) -> None:
        """The device's work has waited for other ranks: they go on together."""

    # ---- instruments -------------------------------------------------------------------------------------------------

    busy_seconds: float
    """How long the device has been busy."""

    @property
    @abc.abstractmethod
    def timeline(self) -> list[Kernel]:
        """Kernels and transfers in the order of their launch. Raises RuntimeError where a grader keeps them."""

    @abc.abstractmethod
    def last(self) -> Kernel:
        """The one launched last, as a profiler sees it."""

    @abc.abstractmethod
    def busy_between(self, begin: float, end: float) -> float:
        """Seconds within [begin, end] in which at least one kernel ran; only recent kernels are looked at."""

    @abc.abstractmethod
    def moved_between(self, begin: float, end: float, *, since: float, name: str = "") -> float:
        """Bytes moved within [begin, end] by what is called `name`..., of what was not over before `since`."""


class DeviceQueue(Queue):
    """The streams of one GPU and everything that ran on them."""

    def __init__(self, pricing: Pricing, index: int = 0) -> None:
        super().__init__(pricing, index)
        self._lock = threading.RLock()
        self._streams: dict[int, _Stream] = {0: _Stream()}
        # What becomes a `Kernel` when somebody looks: making the objects would double the cost of a launch.
        self._entries: list[tuple[Any, ...]] = []
        self._kernels: list[Kernel] = []
        self._slowdowns: list[Slowdown] = []
        self._priced = pricing.priced
        self.busy_seconds = 0.0
        self._busy_until = 0.0
        # How long the device had been busy when its work last waited for other ranks.
        self._busy_when_level = 0.0
        # With several streams: when each engine is in use, and when the device is.
        self._engines: dict[str, Intervals] = {}
        self._busy = Intervals()

    def new_stream(self, now: float) -> int:
        """See `Queue`."""
        with self._lock:
            number = len(self._streams)
            if number == 1:
                # What is queued so far on the only stream fills the device.
                ready = self._streams[0].ready
                self._engines = {engine: Intervals() for engine in ENGINES}
                for engine in ENGINES:
                    self._engines[engine].add(min(now, ready), ready)
                self._busy.add(0.0, self._busy_until)
            self._streams[number] = _Stream()
            self.has_several_streams = True
            if self.observer is not None:
                self.observer.opened(self._index, number)
            return number

    @property
    def streams(self) -> int:
        """How many there are; their numbers begin with 0."""
        return len(self._streams)

    def submit(
        self,
        work: KernelWork,
        stream: int,
        launched_at: float,
        host_seconds: float,
        thread: str,
        seconds: float | None = None,
    ) -> float:
        """See `Queue`."""
        now = launched_at + host_seconds
        name, product = work.name, work.product
        flops = product.flops if product is not None and work.launches == 1 else 0.0  # `work.flops`, written out
        with self._lock:
            if seconds is None:
                priced = self._priced.get(id(work))  # `Pricing.seconds`, its common case written out
                seconds = priced[1] if priced is not None and priced[0] is work else self.pricing.seconds(work)
                if self._slowdowns:
                    seconds = self._slowed(name, seconds, flops)
            queue = self._streams[stream]
            pending, ready = queue.pending, queue.ready
            if len(pending) == LAUNCH_QUEUE_DEPTH and pending[0] > now:
                now = pending[0]
            start = ready if ready > now else now
            several = self.has_several_streams
            if several and (engine := self.pricing.engine(work)):
                used = self._engines[engine]
                used.forget_before(now)
                start = used.first_gap(start, seconds)
                used.add(start, start + seconds)
            end = start + seconds
            if self.observer is not None:
                end = self.observer.submitted(self._index, stream, work, end, host_seconds)
            queue.ready = end
            pending.append(end)
            dtype = self.pricing.precision(work) if work.tf32 else work.dtype
            self._entries.append(
                (
                    name,
                    launched_at,
                    start,
                    seconds,
                    stream,
                    flops,
                    work.bytes,
                    dtype,
                    work.shapes,
                    thread,
                    host_seconds,
                    work.programs,
                )
            )
            if several:
                self._busy.forget_before(now)
                self.busy_seconds += self._busy.add(start, end)
            elif end > self._busy_until:
                self.busy_seconds += end - (start if start > self._busy_until else self._busy_until)
                self._busy_until = end
        return now

    def slowed(self, name: str, seconds: float, flops: float = 0.0) -> float:
        """See `Queue`."""
        with self._lock:
            return self._slowed(name, seconds, flops)

    def _slowed(self, name: str, seconds: float, flops: float) -> float:
        for slowdown in self._slowdowns:
            if slowdown.applies(name, flops):
                seconds *= slowdown.factor
        return seconds

    def slow_down(self, slowdown: Slowdown) -> None:
        """See `Queue`."""
        with self._lock:
            self._slowdowns.append(slowdown)

    def __len__(self) -> int:
        """How many entries there are in its timeline."""
        return len(self._entries)

    @property
    def timeline(self) -> list[Kernel]:
        """Kernels and transfers in the order of their launch; a list that grows."""
        with self._lock:
            self._kernels += [Kernel(*entry) for entry in self._entries[len(self._kernels) :]]
            return self._kernels

    def recent(self, count: int) -> list[Kernel]:
        """The last ones of the timeline."""
        with self._lock:
            return [Kernel(*entry) for entry in self._entries[-count:]]

    def last(self) -> Kernel:
        """See `Queue`."""
        return Kernel(*self._entries[-1])

    def slowest_is_late_by(self, ranks: int) -> float:
        """See `Queue`."""
        return max(self.busy_seconds - self._busy_when_level, 0.0) * cost.straggler_ratio(ranks)

    def level(self) -> None:
        """See `Queue`."""
        self._busy_when_level = self.busy_seconds
        if self.observer is not None:
            self.observer.levelled(self._index)

    def ready_at(self, stream: int | None = None) -> float:
        """See `Queue`."""
        if stream is not None:
            return self._streams[stream].ready
        with self._lock:
            return max(queue.ready for queue in self._streams.values())

    def event(self, stream: int, now: float) -> float:
        """See `Queue`."""
        return no_earlier(self._streams[stream].ready, now)

    def pending(self, stream: int) -> list[float]:
        """When each of the last LAUNCH_QUEUE_DEPTH entries of a stream is done: so many launches from now on wait."""
        return list(self._streams[stream].pending)

    def hold_until(self, stream: int, moment: float | Later) -> None:
        """See `Queue`."""
        assert not isinstance(moment, Later), "events of another process's device"
        with self._lock:
            queue = self._streams[stream]
            if self.observer is not None:
                self.observer.held(self._index, stream, moment)
            queue.ready = max(queue.ready, moment)

    def busy_between(self, begin: float, end: float) -> float:
        """See `Queue`."""
        busy, until = 0.0, end
        for kernel in reversed(self.timeline):
            if kernel.end < begin - (end - begin):
                break
            low, high = max(kernel.start, begin), min(kernel.end, until)
            if high > low:
                busy += high - low
                until = low
        return busy

    def moved_between(self, begin: float, end: float, *, since: float, name: str = "") -> float:
        """See `Queue`."""
        moved = 0.0
        for kernel in reversed(self.timeline):
            if kernel.end < since:
                break
            inside = min(kernel.end, end) - max(kernel.start, begin)
            if inside > 0 and kernel.name.startswith(name):
                moved += kernel.bytes * inside / kernel.seconds
        return moved
