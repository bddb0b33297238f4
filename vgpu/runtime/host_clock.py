"""Virtual time on the host: one clock per thread. Pure Python.

Every thread has its own point in virtual time. Work moves only the clock of the thread that does it. Not here: which
thread may go on (`vgpu.runtime.thread_scheduler`), the device's time (`vgpu.device.queue`) and the patches of `time.*`.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Protocol

from vgpu.device.host_span import HostSpan
from vgpu.runtime.thread_scheduler import ThreadClock, ThreadScheduler, sleep_real

_ASKED_IN_FULL = 1000
"""So often a thread asks in a row before its time passes faster, each time by twice as much."""
_MOST_DOUBLINGS = 12


class Recorder(Protocol):
    """Somebody who writes down what the host's threads do (`vgpu.runtime.recorder`)."""

    def spent(self, clock: ThreadClock, seconds: float, key: str = "") -> None:
        """A thread worked; `key` names what of the card decides how long."""

    def waited(self, clock: ThreadClock, moment: float) -> None:
        """A thread waits for a moment, which may have passed."""

    def slept(self, clock: ThreadClock, seconds: float) -> None:
        """A thread slept, or its time limit passed."""

    def spawned(self, clock: ThreadClock, new: ThreadClock) -> None:
        """A thread starts another."""

    def called(self, clock: ThreadClock, other: ThreadClock) -> None:
        """A thread wakes another, if that waits."""

    def woken(self, clock: ThreadClock) -> None:
        """A thread that was called goes on."""


class HostClock:
    """The clocks of all threads of the program."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._local = threading.local()
        # Plain tuples until somebody looks: this is part of every operation.
        self._spans: list[tuple[str, str, float, float, str]] = []
        self.scheduler = ThreadScheduler()
        self._main = ThreadClock(
            thread=threading.current_thread().name, native_id=threading.get_native_id(), ident=threading.get_ident()
        )
        self.scheduler.join_in(self._main)
        self._local.clock = self._main

    def mine(self) -> ThreadClock:
        """The calling thread's clock; a thread that nobody announced takes no part, and follows the first one."""
        try:
            clock: ThreadClock = self._local.clock
        except AttributeError:
            # Not `current_thread`: for a thread that C++ made it makes an object, whose locks ask for the clock again.
            known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
            name = known.name if known is not None else "C++ thread"
            clock = self._local.clock = ThreadClock(now=self._main.now, thread=name)
        return clock

    @property
    def now(self) -> float:
        """Virtual seconds since attach, on the calling thread."""
        try:  # `mine`, written out: this is part of every operation
            now: float = self._local.clock.now
        except AttributeError:
            now = self.mine().now
        return now

    def advance(self, seconds: float, key: str = "") -> float:
        """The calling thread works for `seconds`, which what a recorder calls `key` decides; returns its new time."""
        clock = self.mine()
        if self.recorder is not None:
            self.recorder.spent(clock, seconds, key)
        clock.move(clock.now + seconds)
        if clock.now > clock.limit:
            self.scheduler.give_way(clock)
        return clock.now

    def ask(self, seconds: float) -> None:
        """The calling thread asks for something that others may change, which takes `seconds`.

        One that does nothing but ask, again and again, before the others have their turn learns nothing new: after the
        first answers its time passes faster, as if it had asked that often, and no further than their turn.
        """
        clock = self.mine()
        clock.asked = clock.asked + 1 if clock.now == clock.asked_at else 0
        more = clock.asked - _ASKED_IN_FULL
        if more > 0 and clock.limit < math.inf:
            seconds = max(seconds, min(seconds * 2.0 ** min(more, _MOST_DOUBLINGS), clock.limit - clock.now))
        self.advance(seconds)
        clock.asked_at = clock.now

    def read(self, seconds: float) -> float:
        """The calling thread looks at its clock, which takes `seconds`."""
        clock = self.mine()
        if not clock.takes_part:
            clock.move(max(clock.now, self._main.now))
        return self.advance(seconds)

    def read_busy(self, seconds: float) -> float:
        """The calling thread asks how long a processor has worked for it, which takes `seconds`.

        Waiting for the GPU counts: CUDA's driver asks again and again whether it is done, as long as there is no more
        than one context for each core (`cudaDeviceScheduleAuto`).
        """
        return self.read(seconds) - self.mine().idle

    def spend(self, seconds: float, kind: str, name: str, key: str = "", *, times: int = 1) -> float:
        """The same, so many times, which its history keeps as one; returns when it began."""
        clock = self.mine()
        if self.recorder is not None:
            for _ in range(times):
                self.recorder.spent(clock, seconds, key)
        seconds *= times
        begin = clock.now
        end = begin + seconds
        clock.move(end)
        self._spans.append((kind, name, begin, end, clock.thread))
        if end > clock.limit:
            self.scheduler.give_way(clock)
        return begin

    def launched(self, clock: ThreadClock, returns_at: float, free_at: float) -> None:
        """A thread's launch returns, or does so only when the device's queue has room for it."""
        try:  # noqa: SIM105 - `move`, written out: this is part of every operation
            clock.step(returns_at)
        except ValueError:
            pass
        if free_at > returns_at:
            self._jump(clock, free_at, "launch queue is full", "wait")
        if clock.now > clock.limit:
            self.scheduler.give_way(clock)

    def end_region(self, name: str, begin: float) -> None:
        """A block that the program named began at `begin` and ends now."""
        clock = self.mine()
        self._spans.append(("region", name, begin, clock.now, clock.thread))

    def wait_until(self, moment: float, name: str = "wait", kind: str = "wait") -> None:
        """The calling thread waits for something that happens at `moment` (no effect when that has passed)."""
        clock = self.jump(moment, name, kind)
        if clock.now > clock.limit:
            self.scheduler.give_way(clock)

    def jump(self, moment: float, name: str = "wait", kind: str = "wait") -> ThreadClock:
        """The same for a caller that holds a lock: other threads get their turn at its next step."""
        clock = self.mine()
        if self.recorder is not None:
            self.recorder.waited(clock, moment)
        self._jump(clock, moment, name, kind)
        return clock

    def _jump(self, clock: ThreadClock, moment: float, name: str, kind: str) -> None:
        if moment > clock.now:
            self._spans.append((kind, name, clock.now, moment, clock.thread))
            clock.move(moment)

    @property
    def spans(self) -> list[HostSpan]:
        """What the host's threads did and waited for, launches aside, in the order in which it was noted."""
        return [HostSpan(*span) for span in list(self._spans)]

    def spawn(self, thread: str, *, takes_part: bool = True) -> ThreadClock:
        """A clock for a thread (by name) about to start: it begins at the starter's time."""
        clock = ThreadClock(now=self.now, thread=thread)
        if takes_part:
            self.scheduler.join_in(clock)
        else:
            self.scheduler.outsiders += 1
        if self.recorder is not None:
            self.recorder.spawned(self.mine(), clock)
        return clock

    def adopt(self, clock: ThreadClock) -> None:
        """The calling thread runs on `clock` from now on (made by `spawn`)."""
        self._local.clock = clock
        self.scheduler.first_turn(clock)

    def finish(self, clock: ThreadClock) -> None:
        """A thread has ended; nobody waits for its time any more."""
        if clock.takes_part:
            self.scheduler.leave(clock)
        else:
            self.scheduler.outsiders -= 1

    def forked(self) -> None:
        """This process is a fork of the one that attached: the calling thread is the only one."""
        clock = self._main = self.mine()
        self.scheduler.forked(clock)

    def sleep(self, seconds: float) -> None:
        """`time.sleep`: threads that are due before go first. A thread that takes no part sleeps really."""
        clock = self.mine()
        self.scheduler.come_back(clock)
        begin = clock.now
        if clock.takes_part:
            self.scheduler.sleep(clock, begin + max(seconds, 0.0))
            if self.recorder is not None:
                self.recorder.slept(clock, clock.now - begin)
            self._spans.append(("sleep", "sleep", begin, clock.now, clock.thread))
            clock.idle += clock.now - begin
        else:
            sleep_real(seconds)

    def block(self, seconds: float | None = None) -> bool:
        """The calling thread waits until another one calls it, at most for `seconds`; False when that passed."""
        clock = self.mine()
        self.scheduler.come_back(clock)
        begin = clock.now
        called = self.scheduler.block(clock, seconds)
        if self.recorder is not None and called:
            self.recorder.woken(clock)
        elif self.recorder is not None:
            self.recorder.slept(clock, clock.now - begin)
        if clock.now > begin:
            self._spans.append(("wait", "wait", begin, clock.now, clock.thread))
            clock.idle += clock.now - begin
        return called

    def call(self, clock: ThreadClock) -> None:
        """Wake a blocked thread, at the caller's time."""
        mine = self.mine()
        if self.recorder is not None:
            self.recorder.called(mine, clock)
        self.scheduler.call(clock, mine.now if mine.takes_part else None)

    def hold(self) -> contextlib.AbstractContextManager[None]:
        """In this block the thread really waits for something whose virtual time nobody knows yet."""
        return self.scheduler.hold(self.mine())
