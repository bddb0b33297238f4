"""How long a program may take: sizes that would not end in reasonable time are left out, and it says which and why.

Not for measuring devices: this clock is that of the machine the program runs on, and is a virtual GPU's neither. What a
size costs is foreseen from smaller ones of the same kind, which have been run.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator

DEFAULT_SECONDS = 60
"""Of processor time for what a program measures; starting it takes some ten more."""


def processor_seconds() -> float:
    """Processor time of this process, all threads and children that have ended. `os.times` is never on virtual time."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Allowance:
    """Processor time for work of several kinds and sizes.

    allowance = Allowance(60)
    for size in sizes:  # from small to large
        if (why := allowance.refusal("tiled", size)) is None:
            with allowance.running("tiled", size):
                ...
    """

    def __init__(
        self, seconds: float, *, steepest: float = 2.0, clock: Callable[[], float] = processor_seconds
    ) -> None:
        """Begin now.

        Args:
            seconds: for everything together, from now on.
            steepest: the work of a size is at most this power of it; 2 for work that is quadratic.
            clock: what is spent, in seconds.
        """
        self.seconds = seconds
        self._steepest = steepest
        self._clock = clock
        self._begin = clock()
        self._spent: dict[str, dict[int, float]] = {}

    def refusal(self, kind: str, size: int) -> str | None:
        """Why work of this size is to be left out; None if it fits, or nothing is known of its kind yet."""
        needed = self._foreseen(kind, size)
        left = max(self.seconds - (self._clock() - self._begin), 0.0)
        if needed is None or needed <= left:
            return None
        return f"it would take some {needed:.0f} s of processor time, and {left:.0f} s of {self.seconds:.0f} s are left"

    @contextlib.contextmanager
    def running(self, kind: str, size: int) -> Iterator[None]:
        """Note what the work in this block costs, for the next sizes."""
        start = self._clock()
        yield
        self._spent.setdefault(kind, {})[size] = self._clock() - start

    def _foreseen(self, kind: str, size: int) -> float | None:
        """Seconds for a size, from the two largest below it: they tell how steeply the work grows."""
        known = sorted((smaller, spent) for smaller, spent in self._spent.get(kind, {}).items() if smaller <= size)
        if not known:
            return None
        largest, seconds = known[-1]
        power = self._steepest
        if len(known) > 1 and known[-2][1] > 0 and seconds > 0:
            before, less = known[-2]
            # The first size of all also pays for what is loaded once, so work never looks flatter than proportional.
            power = min(max(math.log(seconds / less) / math.log(largest / before), 1.0), self._steepest)
        return float(seconds * (size / largest) ** power)
