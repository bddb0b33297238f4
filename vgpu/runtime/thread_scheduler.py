"""Whose turn it is: of the program's threads only the one that is earliest in virtual time runs.

So what threads do to each other - set an event, fill a queue, launch on a shared GPU - happens in the order of virtual
time, whatever the operating system does, and every run gives the same times (conservative discrete-event simulation).
Threads that PyTorch and Python's library start for themselves are outside of it. Not here: the clocks' history
(`vgpu.runtime.host_clock`) and the patches of `threading` (`vgpu.torch_integration.patches.threads`). Pure Python.
"""

from __future__ import annotations

import contextlib
import enum
import math
import operator
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import process
from pathlib import Path
from typing import Any

from vgpu.runtime import audit_events

# Bound before anything is patched: the simulation itself must wait in real time.
time_real = time.perf_counter
sleep_real = time.sleep
allocate_lock = threading._allocate_lock  # type: ignore[attr-defined]

# How often a waiting thread looks at the one whose turn it is (real seconds), and after how many looks without any
# progress of it the turn passes on: it is held by something that Python cannot see (a socket, a lock in C code), and
# sleeps in all of them, or computes for very long.
_LOOK_REAL_SECONDS = 0.02
_LOOKS_IF_BLOCKED = 10
_LOOKS_IF_BUSY = 100
_PLACES_IF_POLLING = 4


class State(enum.Enum):
    """What a thread is doing, as far as it concerns the others."""

    OUTSIDE = "takes no part"
    RUNNING = "has the turn"
    READY = "goes on when its time is the earliest"
    BLOCKED = "waits for another thread, perhaps for a limited time"
    BUSY = "computed for so long that the turn passed on; it still bounds the others"
    AWAY = "waits for something that Python cannot see"


@dataclass(slots=True, eq=False)
class ThreadClock:
    """One thread's virtual time in seconds since attach."""

    now: float = 0.0
    thread: str = "MainThread"
    state: State = State.OUTSIDE
    limit: float = math.inf
    """While it has the turn: when another thread's time comes."""
    order: int = 0
    wake: float = math.inf
    """While it is blocked: when it goes on at the latest."""
    began_real: float = 0.0
    is_late: bool = False
    """Whether the time limit of its last wait passed."""
    is_called: bool = False
    """Whether somebody woke it since it last said that it might wait."""
    holding: int = 0
    native_id: int | None = None
    ident: int | None = None
    idle: float = 0.0
    """How long it has slept, or waited for another thread: no processor worked for it meanwhile."""
    asked: int = 0
    """How often in a row it has asked for what others may change."""
    asked_at: float = -1.0
    """Its time after the last of these."""
    gate: Any = field(default_factory=allocate_lock)
    step: Callable[[float | None], bool] = field(init=False, repr=False)
    """Moves `now`, and answers None with whether nothing else did (`vgpu.runtime.audit_events`)."""

    def __post_init__(self) -> None:
        steps = audit_events.steps(self)
        next(steps)
        self.step = steps.send

    def move(self, moment: float) -> None:
        """The thread's time is `moment` from now on."""
        try:
            self.step(moment)
        except ValueError:
            # Within a step: by a signal handler or a finalizer, whose own steps are lost.
            return

    @property
    def takes_part(self) -> bool:
        """Whether the thread is one of those that take turns."""
        return self.state is not State.OUTSIDE

    @property
    def due(self) -> float:
        """When it goes on, as far as is known."""
        if self.state is State.BLOCKED:
            return self.wake
        return math.inf if self.state is State.AWAY else self.now


class ThreadScheduler:
    """The threads that take turns. One lock guards it all; it is held for moments only."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._clocks: list[ThreadClock] = []
        self._running: ThreadClock | None = None
        self._count = 0
        self._open = True
        # The latest time at which the turn passed on.
        self._reached = 0.0
        # Threads that take no part, but may wake those that do.
        self.outsiders = 0

    def join_in(self, clock: ThreadClock) -> None:
        """A thread takes part from now on; the first one has the turn."""
        clock.gate.acquire()
        with self._lock:
            self._count += 1
            clock.order = self._count
            clock.state = State.READY
            self._clocks.append(clock)
            if self._running is None:
                self._grant(clock, itself=clock)
            self._set_limit()

    def first_turn(self, clock: ThreadClock) -> None:
        """Called by a new thread itself."""
        clock.native_id, clock.ident = threading.get_native_id(), threading.get_ident()
        if clock.takes_part:
            self._wait_for_turn(clock)

    def has_others(self, clock: ThreadClock) -> bool:
        """Whether other threads of the program are alive."""
        return bool(self.outsiders) or any(other is not clock for other in self._clocks)

    @property
    def is_over(self) -> bool:
        """Whether everything runs in real time again."""
        return not self._open

    def leave(self, clock: ThreadClock) -> None:
        """A thread has ended."""
        with self._lock:
            if clock in self._clocks:
                self._clocks.remove(clock)
            clock.state, clock.limit = State.OUTSIDE, math.inf
            self._pass_on(clock)

    def forked(self, clock: ThreadClock) -> None:
        """In a child process only the calling thread is left."""
        self.__init__()  # type: ignore[misc]
        clock.gate, clock.limit, clock.holding = allocate_lock(), math.inf, 0
        clock.native_id, clock.ident = threading.get_native_id(), threading.get_ident()
        self.join_in(clock)

    def close(self) -> None:
        """Detached: every thread goes on, in real time."""
        with self._lock:
            self._open = False
            for clock in self._clocks:
                clock.limit = math.inf
                if clock.state in (State.READY, State.BLOCKED):
                    clock.gate.release()
                clock.state = State.OUTSIDE
            self._clocks.clear()
            self._running = None

    # ---- what a thread does ------------------------------------------------------------------------------------------

    def sleep(self, clock: ThreadClock, moment: float) -> None:
        """The thread goes on at `moment`; who is due before goes first."""
        # The common case without the lock: no other thread is due before `moment`, so nobody could have done anything
        # in between. `limit` was set when the turn was granted, and the thread that wakes another sets it again.
        if moment <= clock.limit or not clock.takes_part or clock.holding:
            clock.move(max(clock.now, moment))
        else:
            self.prepare(clock)
            self.block(clock, moment - clock.now)
            clock.move(max(clock.now, moment))

    def come_back(self, clock: ThreadClock) -> None:
        """Called before a thread waits: the turn may have been taken from it."""
        if clock.state in (State.AWAY, State.BUSY):
            self.give_way(clock)

    def give_way(self, clock: ThreadClock) -> None:
        """The thread has come to a time that others have not reached: they go first."""
        with self._lock:
            if not self._open or not clock.takes_part:
                clock.limit = math.inf
                return
            if clock.state is State.AWAY:
                # The event that it waited for came from somewhere, at the earliest now.
                clock.move(max(clock.now, self._reached))
            clock.state = State.READY
            if self._running is clock or self._running is None:
                self._running = None
                self._grant(self._earliest(), itself=clock)
            else:
                self._set_limit()
            if self._running is clock:
                return
        self._wait_for_turn(clock)

    def prepare(self, clock: ThreadClock) -> None:
        """The thread is about to look whether it has to wait: a call from now on counts."""
        clock.is_called = False

    def block(self, clock: ThreadClock, seconds: float | None = None) -> bool:
        """Wait until `call`ed, at most for `seconds` of virtual time; False when that passed."""
        with self._lock:
            # A call between `prepare` and here must not be lost: the thread looked, and was woken before it slept.
            if not self._open or clock.is_called:
                return True
            clock.state = State.BLOCKED
            clock.wake = math.inf if seconds is None else clock.now + max(seconds, 0.0)
            clock.is_late, clock.began_real = False, time_real()
            self._pass_on(clock)
            if self._running is clock:
                return not clock.is_late
        self._wait_for_turn(clock)
        return not clock.is_late

    def call(self, clock: ThreadClock, moment: float | None) -> None:
        """Wake a thread at the caller's `moment` (None: the caller takes no part)."""
        with self._lock:
            # Causality: what a thread is woken by cannot happen before its waker's time, so its own time moves up to
            # that.
            clock.is_called = True
            if clock.state is not State.BLOCKED:
                return
            clock.move(clock.now if moment is None else max(clock.now, moment))
            clock.state, clock.is_late = State.READY, False
            if self._running is None:
                self._grant(self._earliest())
            else:
                self._set_limit()

    @contextlib.contextmanager
    def hold(self, clock: ThreadClock) -> Iterator[None]:
        """The thread really waits for something whose virtual time nobody knows yet: it keeps the turn."""
        clock.holding += 1
        try:
            yield
        finally:
            clock.holding -= 1

    # ---- the turn ----------------------------------------------------------------------------------------------------

    def _earliest(self) -> ThreadClock | None:
        return self._first_of([clock for clock in self._clocks if clock.due < math.inf])

    @staticmethod
    def _first_of(clocks: list[ThreadClock]) -> ThreadClock | None:
        return min(clocks, key=lambda clock: (clock.due, clock.order), default=None)

    def _is_alone(self) -> bool:
        """Whether nobody outside can wake a thread."""
        return not self.outsiders and not process._children  # type: ignore[attr-defined]

    def _pass_on(self, clock: ThreadClock) -> None:
        if self._running is clock:
            self._running = None
            self._grant(self._earliest(), itself=clock)
        elif self._running is not None:
            self._set_limit()

    def _grant(self, clock: ThreadClock | None, itself: ThreadClock | None = None) -> None:
        if clock is None:
            return
        if clock.state is State.BLOCKED:
            # Somebody outside may still call a thread: then time in which nothing happens passes like real time.
            if not self._is_alone() and time_real() - clock.began_real < clock.wake - clock.now:
                return
            clock.move(max(clock.now, clock.wake))
            clock.is_late = True
        # A thread that was away comes back at this time at the earliest: the others have acted up to here, and it must
        # not act in their past.
        self._reached = max(self._reached, clock.now)
        # A BUSY one never stopped: it computes in real time, and its gate is open already.
        waits_at_gate = clock.state is not State.BUSY
        clock.state = State.RUNNING
        self._running = clock
        self._set_limit()
        if waits_at_gate and clock is not itself:
            clock.gate.release()

    def _set_limit(self) -> None:
        running = self._running
        if running is None:
            return
        others = [clock for clock in self._clocks if clock is not running]
        limit = min((clock.due for clock in others), default=math.inf)
        # A process or thread outside may wake a blocked one at any moment from its own time on, so the running one must
        # not pass that time unseen.
        if others and not self._is_alone():
            limit = min([limit, *(clock.now for clock in others if clock.state is State.BLOCKED)])
        running.limit = limit

    def _wait_for_turn(self, clock: ThreadClock) -> None:
        if clock.native_id is None or clock.ident is None:
            clock.native_id, clock.ident = threading.get_native_id(), threading.get_ident()
        try:
            # Waiting threads look after the running one, because only they have nothing else to do: no watchdog thread
            # is needed, and none runs in a program with a single thread.
            looks = _Looks()
            while not clock.gate.acquire(timeout=_LOOK_REAL_SECONDS):
                with self._lock:
                    running = self._running
                    if running is None:
                        self._grant(self._earliest())
                        continue
                    state = looks.at(running)
                    if state is not State.RUNNING:
                        looks = _Looks()
                        self._take_from(running, state)
        except BaseException:  # KeyboardInterrupt: the thread goes on without its turn
            with self._lock:
                if self._running is not clock:
                    clock.state, clock.limit = State.AWAY, -1.0
            raise

    def _take_from(self, running: ThreadClock, state: State) -> None:
        """The turn passes on from a thread that makes no progress; it waits for its next turn when it does."""
        running.state, running.limit = state, -1.0
        self._running = None
        self._grant(self._first_of([clock for clock in self._clocks if clock is not running and clock.due < math.inf]))


class _Looks:
    """What a waiting thread has seen of the one whose turn it is."""

    def __init__(self) -> None:
        self._seen: tuple[ThreadClock, float] | None = None
        self._count = 0
        self._places: set[Any] = set()
        # Where it was when it slept, in the last looks without a break.
        self._asleep: deque[Any] = deque(maxlen=_LOOKS_IF_BLOCKED)

    def at(self, running: ThreadClock) -> State:
        """Look once more: the state in which the thread is, as far as one can see from outside."""
        now = running, running.now
        if self._seen != now or running.holding:
            self._seen, self._count = now, 0
            self._places.clear()
            self._asleep.clear()
            return State.RUNNING
        self._count += 1
        place = _place_of(running)
        self._places.add(place)
        if is_asleep(running):
            self._asleep.append(place)
        else:
            self._asleep.clear()
        # One that reads modules from a slow disk sleeps as well, but not for long in the same places.
        if len(self._asleep) == _LOOKS_IF_BLOCKED and len(set(self._asleep)) < _PLACES_IF_POLLING:
            return State.AWAY
        if self._count < _LOOKS_IF_BUSY:
            return State.RUNNING
        # One that was seen in many places polls something without a wait, such as the process's memory: it will make no
        # progress, and does not bound the others.
        return State.AWAY if len(self._places) >= _PLACES_IF_POLLING else State.BUSY


def _place_of(clock: ThreadClock) -> Any:
    """Where a thread is in its Python code.

    In one call of C, so that no other thread runs while this one holds frames: a function that returns while its frame
    is held keeps its variables, and PyTorch copies the description of a result that somebody else holds
    (`make_variable` in torch/csrc/autograd/variable.h), which would take the virtual host time. Not by `f_code`: asking
    for that raises an audit event, and another thread can run while a hook written in Python is called.
    """
    frames = map(operator.itemgetter(clock.ident), iter(sys._current_frames, None))
    try:
        module, line, instruction = next(map(operator.attrgetter("f_globals", "f_lineno", "f_lasti"), frames))
    except KeyError:
        return None
    return id(module), line, instruction


def is_asleep(clock: ThreadClock) -> bool:
    """Whether the operating system says that the thread waits, not for a disk; True where it cannot be asked."""
    try:
        text = Path(f"/proc/self/task/{clock.native_id}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[:1] not in (["R"], ["D"])
