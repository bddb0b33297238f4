"""Sets of disjoint intervals of time: when a part of a GPU is in use. Pure Python.

Not here: what uses it (`vgpu.device.queue`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Intervals:
    """Disjoint intervals in order; those that touch are one."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def add(self, start: float, end: float) -> float:
        """Take in [start, end]; returns how much of it was not covered before."""
        if end <= start:
            return 0.0
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        covered = sum(min(end, self._ends[index]) - max(start, self._starts[index]) for index in range(first, last))
        low, high = start, end
        if first < last:
            low, high = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [low]
        self._ends[first:last] = [high]
        return end - start - covered

    def first_gap(self, moment: float, length: float) -> float:
        """The earliest time from `moment` on at which `length` fits without overlap."""
        index = bisect_right(self._ends, moment)
        while index < len(self._starts) and self._starts[index] < moment + length:
            moment = max(moment, self._ends[index])
            index += 1
        return moment

    def forget_before(self, moment: float) -> None:
        """Drop what ended before."""
        count = bisect_left(self._ends, moment)
        if count:
            del self._starts[:count], self._ends[:count]
