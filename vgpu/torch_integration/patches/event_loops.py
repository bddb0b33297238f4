"""`asyncio` in virtual time: an event loop that waits only for its timers goes on when their time comes.

A loop that also waits for sockets or pipes waits really, and loses as much virtual time. Not here: threads
(`vgpu.torch_integration.patches.threads`), with which a loop may work together.
"""

# mypy: disable-error-code="no-untyped-call"
# (Python's event loops carry few annotations)

from __future__ import annotations

from types import ModuleType
from typing import Any

from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_scheduler import ThreadClock
from vgpu.torch_integration.patches.imports import when_imported
from vgpu.torch_integration.patches.threads import clock_of_turns, monotonic

# Which thread waits in a loop's `select`, by the loop.
_selecting: dict[int, ThreadClock] = {}


class Selector:
    """A selector that waits in virtual time where only the loop's own wake-up pipe is registered."""

    def __init__(self, selector: Any, loop: Any) -> None:
        self._selector = selector
        self._loop = id(loop)

    def select(self, timeout: float | None = None) -> Any:
        """As `selectors.BaseSelector.select`."""
        events = self._selector.select(0)
        clock = clock_of_turns()
        if events or clock is None or (timeout is not None and timeout <= 0):
            return events if events or clock is not None else self._selector.select(timeout)
        if len(self._selector.get_map()) > 1:
            with clock.hold():
                events = self._selector.select(timeout)
            if not events and timeout is not None:
                clock.advance(timeout)
            return events
        mine = clock.mine()
        clock.scheduler.prepare(mine)
        _selecting[self._loop] = mine
        try:
            events = self._selector.select(0)
            if not events:
                clock.block(timeout)
        finally:
            _selecting.pop(self._loop, None)
        return events or self._selector.select(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


def install(patches: PatchSet) -> None:
    """Put event loops on virtual time, also where asyncio is imported later."""
    when_imported(patches, {
        "asyncio.base_events": lambda module: _loops(patches, module),
        "asyncio.selector_events": lambda module: _wake_up(patches, module),
    })  # fmt: skip


def _loops(patches: PatchSet, module: ModuleType) -> None:
    loop_class = module.BaseEventLoop
    run_once = loop_class._run_once

    def run_once_in_time(self: Any) -> None:
        if not isinstance(self._selector, Selector):
            self._selector = Selector(self._selector, self)
        run_once(self)

    patches.set(loop_class, "_run_once", run_once_in_time)
    patches.set(loop_class, "time", lambda self: monotonic())


def _wake_up(patches: PatchSet, module: ModuleType) -> None:
    """`call_soon_threadsafe` from another thread: the loop goes on at that thread's time."""
    loop_class = module.BaseSelectorEventLoop
    write = loop_class._write_to_self

    def write_to_self(self: Any) -> None:
        write(self)
        waiting = _selecting.get(id(self))
        machine = attached_machine()
        if waiting is not None and machine is not None:
            machine.clock.call(waiting)

    patches.set(loop_class, "_write_to_self", write_to_self)
