"""Fresh inputs for every grading: one seed, printed and replayable, and a generator of its own for each check.

A generator depends on the seed and the check's name only, so `--lab 3` draws what a full run would have drawn.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

_ROUND = 10
"""So many consecutive seeds share the rows of `Fresh.cases`."""
_CANDIDATES = 16
"""Rows that are drawn for each that is kept: the one with most new pairs. More find hardly better ones."""


def new_seed() -> int:
    """A seed nobody could know beforehand."""
    return secrets.randbelow(2**31)


class Fresh:
    """Random inputs of one check."""

    def __init__(self, seed: int, check_id: str) -> None:
        self._seed = seed
        self._name = check_id
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

    def cases(
        self,
        dimensions: Mapping[str, Sequence[Any]],
        count: int,
        allowed: Callable[[Mapping[str, Any]], bool] = lambda row: True,
    ) -> list[dict[str, Any]]:
        """`count` rows with a value of each dimension, so that values also meet that no case was thought of for.

        Over ten consecutive seeds as many different pairs of values occur as so many rows can hold (pairwise testing:
        D. Kuhn et al., "Software Fault Interactions", IEEE TSE 30(6), 2004; rows are chosen greedily, as AETG does it:
        D. Cohen et al., IEEE TSE 23(7), 1997).

        Args:
            dimensions: the values of each, by name.
            count: rows in one grading.
            allowed: whether the values of a row can be together.
        """
        block, place = divmod(self._seed, _ROUND)
        generator = Fresh(block, f"cases of {self._name}")
        rows: list[dict[str, Any]] = []
        seen: set[tuple[tuple[str, int], ...]] = set()
        for _ in range((place + 1) * count):
            drawn = list(itertools.islice(filter(allowed, generator._rows(dimensions)), _CANDIDATES))
            best = max(drawn, key=lambda row: len(_pairs(dimensions, row) - seen))
            seen |= _pairs(dimensions, best)
            rows.append(best)
        return rows[place * count :]

    def _rows(self, dimensions: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
        while True:
            yield {name: values[self.integer(0, len(values) - 1)] for name, values in dimensions.items()}


def _pairs(dimensions: Mapping[str, Sequence[Any]], row: Mapping[str, Any]) -> set[tuple[tuple[str, int], ...]]:
    """The pairs of values in a row; values by their place, since not all can be hashed."""
    return set(itertools.combinations([(name, values.index(row[name])) for name, values in dimensions.items()], 2))
