"""Points in time that a recording knows again: the end of an entry, or its start. To everybody else they are numbers.

Not here: who makes them (`vgpu.runtime.recorder`).
"""

from __future__ import annotations

from collections.abc import Callable


class Timestamp(float):
    """Seconds since attach at which the entry number `event` ends, or starts (`at_start`)."""

    __slots__ = ("at_start", "event")

    def __new__(cls, seconds: float, event: int, *, at_start: bool = False) -> Timestamp:
        self = super().__new__(cls, seconds)
        self.event = event
        self.at_start = at_start
        return self

    event: int
    at_start: bool


class Later:
    """A moment that a device in another process knows."""

    __slots__ = ("_ask", "_seconds", "number")

    def __init__(self, number: int, ask: Callable[[int], float]) -> None:
        """`number` is the event's; `ask` says when it is over."""
        self.number = number
        self._ask = ask
        self._seconds: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds since attach."""
        if self._seconds is None:
            self._seconds = self._ask(self.number)
        return self._seconds


def start_of(end: float, seconds: float) -> float:
    """The start of an entry that takes `seconds`, from its end."""
    begin = end - seconds
    return Timestamp(begin, end.event, at_start=True) if isinstance(end, Timestamp) else begin


def no_earlier(moment: float, now: float) -> float:
    """The later one of both; still the same entry's where that is over by now."""
    if moment >= now or not isinstance(moment, Timestamp):
        return max(moment, now)
    return Timestamp(now, moment.event, at_start=moment.at_start)
