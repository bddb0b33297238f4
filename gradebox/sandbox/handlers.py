"""Signal handlers of a submission are given no frame: it would be one of the probe's.

Python hands a handler the frame that it interrupts, and raises no audit event. A submission could send itself a signal
while a probe notes something. So `signal.signal` here wraps each handler, and whenever a probe notes something the
handlers that are set must be wrapped ones, or those from before the submission. Not for what a handler does.
"""

from __future__ import annotations

import signal as _python
from collections.abc import Callable
from operator import is_
from types import MethodType
from typing import Any

_signal: Any = vars(_python)["_signal"]
"""The module in C, which `signal` calls."""

LABEL = "a signal handler that gets frames of the probe"


def _handle(of: tuple[Callable[[int, None], object]], number: int, _: object) -> None:
    (handler,) = of
    handler(number, None)


def hide_frames() -> Callable[[], list[tuple[str, object]]]:
    """Wrap handlers from now on; a function that lists what is set in another way: a label, with the handler.

    To be called once, before a submission runs.
    """
    # As locals, which nobody reaches.
    set_handler, get, bound, step, kind = _signal.signal, _signal.getsignal, MethodType, _handle, type
    every, same, mapped, label = all, is_, map, LABEL
    numbers, default = tuple(range(1, _signal.NSIG)), _signal.default_int_handler

    def without(handler: Any) -> Any:
        return handler.__self__[0] if kind(handler) is bound and handler.__func__ is step else handler

    def signal(signalnum: int, handler: Any, /) -> Any:
        """Set the action of a signal; a handler gets None for its frame."""
        is_action = kind(handler) is int or handler is None or handler is _signal.default_int_handler
        return without(
            set_handler(signalnum, handler if is_action or not callable(handler) else bound(step, (handler,)))
        )

    def getsignal(signalnum: int, /) -> Any:
        """The action of a signal, as it was set."""
        return without(get(signalnum))

    known = [tuple(mapped(get, numbers))]
    before = (*known[0], default)

    def others() -> list[tuple[str, object]]:
        now = tuple(mapped(get, numbers))
        if every(mapped(same, now, known[0])):
            return []
        found = [
            (label, each)
            for each in now
            if not (kind(each) is int or (kind(each) is bound and each.__func__ is step))
            and not any(each is other for other in before)
        ]
        if not found:
            known[0] = now
        return found

    _signal.signal, _signal.getsignal = signal, getsignal
    return others
