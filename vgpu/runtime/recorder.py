"""Writes down what happens on a machine, as entries that can be run again.

Not here: the entries (`vgpu.device.recording.entries`), and the file (`vgpu.device.recording.file`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from vgpu.device.kernel_work import KernelWork
from vgpu.device.queue import Queue
from vgpu.device.recording import entries
from vgpu.device.recording.entries import Entry
from vgpu.device.timestamps import Timestamp
from vgpu.runtime.host_clock import HostClock
from vgpu.runtime.thread_scheduler import ThreadClock


class Recorder:
    """What a machine's host and devices do, from `start` on. It observes; nothing takes longer by it."""

    def __init__(self, clock: HostClock, queues: Sequence[Queue]) -> None:
        self._clock = clock
        self._queues = queues
        self.entries: list[Entry] = []
        self.works: dict[KernelWork, int] = {}
        self.threads: dict[int, int] = {}
        self._kept: list[ThreadClock] = []
        self._events = 0
        self._paused = 0

    def start(self) -> None:
        """Observe from now on; before the program uses a GPU."""
        self._clock.recorder = self
        for queue in self._queues:
            queue.observer = self

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The code that opened the block writes down what happens in it."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    # ---- the device's queues -----------------------------------------------------------------------------------------

    def opened(self, gpu: int, stream: int) -> None:
        """A stream was made."""
        self._add(entries.STREAM, self._me(), gpu, stream)

    def submitted(self, gpu: int, stream: int, work: KernelWork, end: float, host_seconds: float) -> float:
        """Work was queued; its end is an event."""
        number = self.works.setdefault(work, len(self.works))
        event = self._event()
        self._add(entries.LAUNCH, self._me(), gpu, stream, number, event, host_seconds > 0)
        return Timestamp(end, event)

    def held(self, gpu: int, stream: int, moment: float) -> None:
        """What comes next on a stream waits for a moment."""
        if isinstance(moment, Timestamp):
            self._add(entries.HOLD, gpu, stream, moment.event, moment.at_start)
        elif (left := moment - self._clock.now) > 0:
            self._add(entries.HOLD_FOR, self._me(), gpu, stream, left)

    def levelled(self, gpu: int) -> None:
        """A device's work has waited for other ranks."""
        self._add(entries.LEVEL, gpu)

    # ---- the host's clock --------------------------------------------------------------------------------------------

    def spent(self, clock: ThreadClock, seconds: float, key: str = "") -> None:
        """A thread worked."""
        if seconds:
            self._add(entries.SPEND, self._number(clock), key, seconds)

    def waited(self, clock: ThreadClock, moment: float) -> None:
        """A thread waits for a moment, which may have passed."""
        if isinstance(moment, Timestamp):
            self._add(entries.WAIT, self._number(clock), moment.event, moment.at_start)
        elif moment > clock.now:
            self._add(entries.SLEEP, self._number(clock), moment - clock.now)

    def waited_for_device(self, gpu: int, stream: int | None) -> None:
        """The calling thread waits for a stream, or for a whole GPU."""
        self._add(entries.IDLE, self._me(), gpu, stream)

    def slept(self, clock: ThreadClock, seconds: float) -> None:
        """A thread slept, or its time limit passed."""
        if seconds:
            self._add(entries.SLEEP, self._number(clock), seconds)

    def spawned(self, clock: ThreadClock, new: ThreadClock) -> None:
        """A thread starts another."""
        self._add(entries.SPAWN, self._number(clock), self._number(new))

    def called(self, clock: ThreadClock, other: ThreadClock) -> None:
        """A thread wakes another, if that waits."""
        self._add(entries.CALL, self._number(clock), self._number(other))

    def woken(self, clock: ThreadClock) -> None:
        """A thread that was called goes on."""
        self._add(entries.WOKEN, self._number(clock))

    # ---- ranks and loaders -------------------------------------------------------------------------------------------

    def met(
        self,
        group: str,
        ranks: int,
        *,
        lag: float,
        end: float,
        host_seconds: float = 0.0,
        place: tuple[int, int, int] | None = None,
        after: float | None = None,
        seconds: float = 0.0,
    ) -> float:
        """The ranks of `group` met, `lag` seconds after this one was ready; what they did took `seconds`, until `end`.

        It was ready when its host was, `host_seconds` from now, what is queued on both streams of `place` (GPU, stream,
        the group's own), and the entry that ends at `after`.
        """
        event = self._event()
        before = after.event if isinstance(after, Timestamp) else None
        where = None if place is None else list(place)
        self._add(entries.MEET, self._me(), group, ranks, host_seconds, where, before, max(lag, 0.0), seconds, event)
        return Timestamp(end, event)

    def workers(self, loader: int, begin: Sequence[float]) -> None:
        """A loader's workers begin at these moments."""
        now = self._clock.now
        self._add(entries.WORKERS, self._me(), loader, [max(moment - now, 0.0) for moment in begin])

    def asked(self, loader: int, batch: int) -> None:
        """A batch is asked of a loader's workers."""
        self._add(entries.ASK, self._me(), loader, batch)

    def batch(self, loader: int, batch: int, worker: int, seconds: float, pinning: float, moment: float) -> float:
        """A batch is needed that a worker made in `seconds`; it is there at `moment`."""
        event = self._event()
        self._add(entries.BATCH, self._me(), loader, batch, worker, seconds, pinning, event)
        return Timestamp(moment, event)

    # ------------------------------------------------------------------------------------------------------------------

    def _add(self, *entry: object) -> None:
        if not self._paused:
            self.entries.append(list(entry))

    def _event(self) -> int:
        self._events += 1
        return self._events - 1

    def _me(self) -> int:
        return self._number(self._clock.mine())

    def _number(self, clock: ThreadClock) -> int:
        number = self.threads.get(id(clock))
        if number is None:
            number = self.threads[id(clock)] = len(self.threads)
            self._kept.append(clock)  # its id stays its own
        return number
