"""Virtual time on the host: one clock per thread. Pure Python.

Every thread has its own point in virtual time. Work moves only the clock of the thread that does it; joining a thread
moves the joiner up to it. Not here: the device's time (`vgpu.device_queue`) and the patches of `time.*`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

# A background sleeper that sees neither progress nor a reason to wait goes on after this long (real seconds): the
# other threads are then held by something that cannot be observed from Python, such as a lock in C code.
_PATIENCE_REAL_SECONDS = 2.0
_POLL_REAL_SECONDS = 0.0005
# A thread that was just woken still looks as if it waited until the interpreter runs it: look this often before
# believing that nobody works.
_QUIET_LOOKS = 3


@dataclass(slots=True)
class ThreadClock:
    """One thread's virtual time in seconds since attach, and whether it waits (really) for something."""

    now: float = 0.0
    background: bool = False
    waiting: int = 0
    sleeping_until: float | None = None
    finished: bool = False


class HostClock:
    """The clocks of all threads of the program."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._clocks: list[ThreadClock] = []
        self._main = self._add(ThreadClock())
        self._local.clock = self._main

    def _add(self, clock: ThreadClock) -> ThreadClock:
        with self._lock:
            self._clocks.append(clock)
        return clock

    def mine(self) -> ThreadClock:
        """The calling thread's clock; a thread that nobody announced starts at the main thread's time."""
        try:
            clock: ThreadClock = self._local.clock
        except AttributeError:
            clock = self._local.clock = self._add(ThreadClock(now=self._main.now, background=True))
        return clock

    @property
    def now(self) -> float:
        """Virtual seconds since attach, on the calling thread."""
        return self.mine().now

    def advance(self, seconds: float) -> float:
        """The calling thread works for `seconds`; returns its new time."""
        clock = self.mine()
        clock.now += seconds
        return clock.now

    def wait_until(self, moment: float) -> None:
        """The calling thread waits for something that happens at `moment` (no effect when that has passed)."""
        clock = self.mine()
        clock.now = max(clock.now, moment)

    def spawn(self) -> ThreadClock:
        """A clock for a thread about to start: it begins at the starter's time."""
        return self._add(ThreadClock(now=self.now, background=True))

    def adopt(self, clock: ThreadClock) -> None:
        """The calling thread runs on `clock` from now on (made by `spawn`)."""
        self._local.clock = clock

    def finish(self, clock: ThreadClock) -> None:
        """A thread has ended; nobody waits for its time any more."""
        with self._lock:
            clock.finished = True
            self._clocks = [other for other in self._clocks if other is not clock]

    def sleep(self, seconds: float) -> None:
        """`time.sleep`: the main thread moves on at once; a background thread lets the others reach that time first.

        Without this a monitor that sleeps 0.1 s in a loop would take thousands of samples while the main thread
        launches one kernel.
        """
        clock = self.mine()
        target = clock.now + max(seconds, 0.0)
        if clock.background:
            self.pause(clock, target)
        clock.now = max(clock.now, target)

    def pause(self, clock: ThreadClock, target: float, stop: threading.Event | None = None) -> bool:
        """Hold the calling background thread until the others get to `target`; True when `stop` was set before."""
        clock.sleeping_until = target
        seen, since, quiet = -1.0, time_real(), 0
        try:
            while not self._others_reached(clock, target):
                quiet = quiet + 1 if self._nobody_works_before(clock, target) else 0
                if quiet > _QUIET_LOOKS:
                    return False
                progress = sum(other.now for other in self._clocks)
                if progress != seen:
                    seen, since = progress, time_real()
                elif time_real() - since > _PATIENCE_REAL_SECONDS:
                    return False
                if stop is None:
                    sleep_real(_POLL_REAL_SECONDS)
                elif event_wait_real(stop, _POLL_REAL_SECONDS):
                    return True
        finally:
            clock.sleeping_until = None
        return False

    def _others(self, clock: ThreadClock) -> list[ThreadClock]:
        with self._lock:
            return [other for other in self._clocks if other is not clock]

    def _others_reached(self, clock: ThreadClock, target: float) -> bool:
        return any(other.now >= target for other in self._others(clock) if other.sleeping_until is None)

    def _nobody_works_before(self, clock: ThreadClock, target: float) -> bool:
        """All others wait, or sleep for at least as long: then the earliest sleeper goes on."""
        for other in self._others(clock):
            if other.sleeping_until is None:
                if other.waiting <= 0:
                    return False
            elif other.sleeping_until < target:
                return False
        return True


# Bound before anything is patched: the simulation itself must wait in real time.
time_real = time.perf_counter
sleep_real = time.sleep
event_wait_real = threading.Event.wait
