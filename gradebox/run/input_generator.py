"""Fresh inputs for every grading: one seed, printed and replayable, and a generator of its own for each check.

A generator depends on the seed and the check's name only, so `--lab 3` draws what a full run would have drawn.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

_ROUND = 10
"""So many consecutive seeds share the rows of `InputGenerator.cases`."""
_CANDIDATES = 16
"""Rows that are drawn for each that is kept: the one with most new pairs. More find hardly better ones."""


def new_seed() -> int:
    """A seed nobody could know beforehand."""
    return secrets.randbelow(2**31)


class InputGenerator:
    """Random inputs of one check."""

    def __init__(self, seed: int, check_id: str) -> None:
        self._seed = seed
        self._name = check_id
        digest = hashlib.sha256(f"{seed}:{check_id}".encode()).digest()
        self.rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))

    def shared(self, name: str) -> InputGenerator:
        """The generator of this grading for `name`: checks that share a case draw it from here and run it once."""
        return InputGenerator(self._seed, name)

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

    def in_turn(self, count: int) -> int:
        """One of `range(count)`: consecutive seeds take one after the other, so that so many gradings have them all."""
        return self._seed % count

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
        generator = InputGenerator(block, f"cases of {self._name}")
        values = _Values(dimensions, allowed)
        rows: list[dict[str, Any]] = []
        covered = 0
        for _ in range((place + 1) * count):
            row, pairs = max(values.draw(generator), key=lambda drawn: (drawn[1] & ~covered).bit_count())
            covered |= pairs
            rows.append(row)
        return rows[place * count :]


class _Values:
    """The values of `InputGenerator.cases`, with a bit for each pair of them: a grading draws thousands of rows."""

    def __init__(self, dimensions: Mapping[str, Sequence[Any]], allowed: Callable[[Mapping[str, Any]], bool]) -> None:
        self._names = list(dimensions)
        self._values = list(dimensions.values())
        self._allowed = allowed
        # Values that are equal are one, at the first one's place.
        places = [[list(values).index(value) for value in values] for values in self._values]
        count = itertools.count()
        self._bits = [
            (first, other, [[1 << bit[left, right] for right in places[other]] for left in places[first]])
            for first, other in itertools.combinations(range(len(places)), 2)
            for bit in [{pair: next(count) for pair in itertools.product(set(places[first]), set(places[other]))}]
        ]

    def draw(self, generator: InputGenerator) -> list[tuple[dict[str, Any], int]]:
        """Some rows, each with its pairs."""
        sizes = np.array([len(values) for values in self._values])
        drawn: list[tuple[dict[str, Any], int]] = []
        while left := _CANDIDATES - len(drawn):
            for chosen in generator.rng.integers(0, sizes, (left, len(sizes))).tolist():
                values = map(operator.getitem, self._values, chosen)
                row = dict(zip(self._names, values, strict=True))
                if self._allowed(row):
                    pairs = 0
                    for first, other, bits in self._bits:
                        pairs |= bits[chosen[first]][chosen[other]]
                    drawn.append((row, pairs))
        return drawn
