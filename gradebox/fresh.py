"""Fresh inputs for every grading: one seed, printed and replayable, and a generator of its own for each check.

A generator depends on the seed and the check's name only, so `--lab 3` draws what a full run would have drawn.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


def new_seed() -> int:
    """A seed nobody could know beforehand."""
    return secrets.randbelow(2**31)


class Fresh:
    """Random inputs of one check."""

    def __init__(self, seed: int, check_id: str) -> None:
        self._seed = seed
        digest = hashlib.sha256(f"{seed}:{check_id}".encode()).digest()
        self.rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))

    def shared(self, name: str) -> Fresh:
        """The generator of this grading for `name`: checks that share a case draw it from here and run it once."""
        return Fresh(self._seed, name)

    def integer(self, low: int, high: int) -> int:
        """An integer with `low <= n <= high`."""
        return int(self.rng.integers(low, high + 1))

    def odd(self, low: int, high: int) -> int:
        """An odd integer with `low <= n <= high`; odd sizes are the ones shortcuts forget."""
        return self.integer(low // 2, (high - 1) // 2) * 2 + 1

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def log_uniform(self, low: float, high: float) -> float:
        """A positive float whose logarithm is uniform."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def normal(self, *shape: int) -> NDArray[np.float32]:
        return self.rng.standard_normal(shape).astype(np.float32)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """In an order of this grading: cases in a fixed one can be answered by counting calls."""
        return [items[int(index)] for index in self.rng.permutation(len(items))]
