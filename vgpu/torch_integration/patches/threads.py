"""Threads that the program starts get the modes and a clock, and take turns in virtual time.

Everything in Python's library with which threads wait for each other (events, queues, semaphores, barriers, futures,
timers) is built on `threading.Condition` and locks, so those are replaced. Not here: the rules
(`vgpu.runtime.thread_scheduler`).
"""

# mypy: disable-error-code="no-untyped-call"
# (Python's own lock in Python carries no annotations)

from __future__ import annotations

import functools
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.host_clock import HostClock
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_scheduler import ThreadClock, allocate_lock

_CLOCK = "_vgpu_clock"
# They wait for other processes, or for the network, where nobody sees it: they take no part in the turns.
_OUTSIDE = (
    "multiprocessing.", "torch.multiprocessing", "torch.utils.data.", "torch.distributed.",
    "vgpu.torch_integration.distributed", "concurrent.futures.process",
    "socketserver", "http.server", "wsgiref.", "tensorboard.",
)  # fmt: skip
# What a glance at an event or a queue costs: modelled. A loop that only looks comes to an end by it.
_GLANCE_SECONDS = 1e-7
_real_monotonic = time.monotonic
_real_rlock = threading.RLock
_real_wait, _real_notify = threading.Condition.wait, threading.Condition.notify
# Which thread waits behind a lock in `Condition._waiters`.
_asleep: dict[int, ThreadClock] = {}


def clock_of_turns() -> HostClock | None:
    """The clock, where the calling thread takes turns and does not hold its own."""
    machine = attached_machine()
    if machine is None:
        return None
    mine = machine.clock.mine()
    return machine.clock if mine.takes_part and not mine.holding else None


def monotonic() -> float:
    """The time by which Python's library measures how long a thread has waited."""
    clock = clock_of_turns()
    return _real_monotonic() if clock is None else clock.now


class Lock:
    """`threading.Lock` for threads that take turns."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._waiting: deque[ThreadClock] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`, in virtual time."""
        if self._lock.acquire(False):
            return True
        clock = clock_of_turns()
        if clock is None or not blocking:
            return bool(self._lock.acquire(blocking, timeout if blocking else -1))
        mine = clock.mine()
        end = None if timeout < 0 else mine.now + timeout
        while True:
            clock.scheduler.prepare(mine)
            self._waiting.append(mine)
            if self._lock.acquire(False):
                self._forget(mine)
                return True
            called = clock.block(None if end is None else end - mine.now)
            self._forget(mine)
            if clock.scheduler.is_over:
                return bool(self._lock.acquire(True, timeout))
            if self._lock.acquire(False):
                return True
            if not called:
                return False

    def _forget(self, mine: ThreadClock) -> None:
        if mine in self._waiting:
            self._waiting.remove(mine)

    def release(self) -> None:
        """As `threading.Lock.release`; the first that waits goes on."""
        self._lock.release()
        if self._waiting:
            machine, first = attached_machine(), self._waiting.popleft()
            if machine is not None:
                machine.clock.call(first)

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return bool(self._lock.locked())

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()
        self._waiting.clear()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()


class RLock(threading._PyRLock):  # type: ignore[name-defined,misc]
    """`threading.RLock` for threads that take turns."""

    def __init__(self) -> None:
        super().__init__()
        self._block = Lock()


def _wait(condition: Any, timeout: float | None = None) -> bool:
    """`Condition.wait` in virtual time."""
    clock = clock_of_turns()
    if clock is None:
        return bool(_real_wait(condition, timeout))
    if not condition._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    mine = clock.mine()
    waiter = allocate_lock()
    waiter.acquire()
    clock.scheduler.prepare(mine)
    condition._waiters.append(waiter)
    _asleep[id(waiter)] = mine
    saved = condition._release_save()
    woken = False
    try:
        clock.block(timeout)
        woken = bool(waiter.acquire(False))
        if not woken and clock.scheduler.is_over:
            woken = bool(waiter.acquire(True, -1 if timeout is None else timeout))
    finally:
        _asleep.pop(id(waiter), None)
        condition._acquire_restore(saved)
        if not woken and waiter in condition._waiters:
            condition._waiters.remove(waiter)
    return woken


def _notify(condition: Any, n: int = 1) -> None:
    """`Condition.notify`: those woken go on at the caller's time."""
    before = list(condition._waiters)
    _real_notify(condition, n)
    machine = attached_machine()
    if machine is not None and before:
        kept = set(map(id, condition._waiters))
        for waiter in before:
            clock = _asleep.get(id(waiter))
            if clock is not None and id(waiter) not in kept:
                machine.clock.call(clock)


def _glances(function: Callable[..., Any]) -> Callable[..., Any]:
    def glance(self: Any) -> Any:
        clock = clock_of_turns()
        if clock is not None:
            clock.ask(_GLANCE_SECONDS)
        return function(self)

    return glance


def _takes_part(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None) or type(thread).run
    module = str(getattr(target, "__module__", ""))
    return not f"{module}.".startswith(_OUTSIDE)


def install(patches: PatchSet, enter_modes: Callable[[], Callable[[], None]]) -> None:
    """`enter_modes` enters the two modes on the calling thread and returns what leaves them."""
    start, join = threading.Thread.start, threading.Thread.join

    def start_with_clock(thread: threading.Thread) -> None:
        machine = attached_machine()
        if machine is None or getattr(thread, _CLOCK, None) is not None:
            start(thread)
            return
        clock = machine.clock
        mine = clock.spawn(thread.name, takes_part=clock.mine().takes_part and _takes_part(thread))
        setattr(thread, _CLOCK, (clock, mine))
        thread.run = functools.partial(run_with_modes, thread, thread.run, clock, mine)  # type: ignore[method-assign]
        with clock.hold():  # until the thread really runs: then it waits for its first turn
            start(thread)

    def run_with_modes(thread: threading.Thread, run: Callable[[], None], host: HostClock, clock: ThreadClock) -> None:
        del thread.run
        if host.scheduler.is_over:
            run()
            return
        host.adopt(clock)
        leave = enter_modes()
        try:
            run()
        finally:
            _end(host, clock)
            leave()

    def join_in_time(thread: threading.Thread, timeout: float | None = None) -> None:
        known: tuple[HostClock, ThreadClock] | None = getattr(thread, _CLOCK, None)
        here = clock_of_turns()
        if here is not None and known is not None and here is known[0] and known[1].takes_part:
            clock, mine = known[1], here.mine()
            here.scheduler.prepare(mine)
            waiting = _joining.setdefault(id(clock), [])
            waiting.append(mine)
            if clock.takes_part:
                here.block(timeout)
            if mine in waiting:
                waiting.remove(mine)
            if clock.takes_part and not here.scheduler.is_over:
                return  # the time limit passed
        join(thread, timeout)

    patches.set(threading.Thread, "start", start_with_clock)
    patches.set(threading.Thread, "join", join_in_time)
    patches.set(threading.Condition, "wait", _wait)
    patches.set(threading.Condition, "notify", _notify)
    patches.set(threading, "_time", monotonic)
    patches.set(queue, "time", monotonic)
    patches.set(queue, "SimpleQueue", queue._PySimpleQueue)  # type: ignore[attr-defined]
    patches.set(threading.Event, "is_set", _glances(threading.Event.is_set))
    for name in ("qsize", "empty", "full"):
        patches.set(queue.Queue, name, _glances(getattr(queue.Queue, name)))
    futures = sys.modules.get("concurrent.futures")
    if futures is not None:
        patches.set(futures.Future, "done", _glances(futures.Future.done))
    for name, kind in (("Lock", Lock), ("RLock", RLock)):
        patches.rebind(getattr(threading, name), kind)
        patches.set(threading, name, kind)


def forked() -> None:
    """In a child that was forked while `threading` was patched: Python made a lock of its own again, of our class."""
    threading._active_limbo_lock = _real_rlock()  # type: ignore[attr-defined]


_joining: dict[int, list[ThreadClock]] = {}


def _end(host: HostClock, clock: ThreadClock) -> None:
    """A thread is about to end: who joins it goes on at its time."""
    waiting = _joining.pop(id(clock), [])
    moment = clock.now
    taking_part = clock.takes_part
    for other in waiting:
        host.scheduler.call(other, moment if taking_part else None)
    host.finish(clock)
