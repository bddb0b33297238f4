"""Input spaces: what the cases of a probe differ in, as data.

A mistake hides where two things meet that no case has together (a frozen parameter *and* a short last window). So
`cases.py` of a criterion declares, for each probe that is given inputs, the dimensions in which they differ (sizes,
divisibility, types, flags, order, presence, what is degenerate, what was there before) and the values of each. Its
cases are drawn from them, and `tests/scenarios/inputs` reads the requests of real gradings: a pair of values that none
of ten has is a gap. The remedy is another case, or an entry in `apart` that says why the two cannot meet.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gradebox.sandbox import Request

Case: TypeAlias = Mapping[str, Any]
"""One call of what a student writes, as a request describes it: what its values are, each space knows."""


@dataclass(frozen=True)
class Dimension:
    """One thing in which cases differ."""

    name: str
    values: tuple[str, ...]
    """All that must occur."""
    of: Callable[[Case], str | None]
    """Which of them a case has; None where the case has nothing of the kind."""


@dataclass(frozen=True)
class Space:
    """What the cases of some probes, which ask for the same code, differ in."""

    probes: tuple[str, ...]
    cases: Callable[[Request], Iterable[Case]]
    """The cases of a request."""
    dimensions: tuple[Dimension, ...]
    apart: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Pairs that need not occur, each value as `dimension=value`, and why: they cannot meet, or nothing depends on it.
    With `dimension=*` for one of the two, whatever the other dimension has."""

    def values(self, instead: Mapping[str, tuple[str, ...]] = {}) -> dict[str, tuple[str, ...]]:
        """What rows of cases are drawn from: the values of each dimension, or those named here `instead`; one that has
        none is left out."""
        chosen = {dimension.name: instead.get(dimension.name, dimension.values) for dimension in self.dimensions}
        return {name: values for name, values in chosen.items() if values}

    def allows(self, row: Mapping[str, str]) -> bool:
        """Whether the values of a drawn row may be in one case."""
        return not any(all(text in ("*", row[name]) for name, text in pair) for pair in self._clashes)

    @functools.cached_property
    def _clashes(self) -> list[list[tuple[str, str]]]:
        """The pairs of `apart`, each value as dimension and value."""
        return [[(name, text) for name, _, text in (value.partition("=") for value in pair)] for pair in self.apart]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Every pair of values that must occur."""
        for first, other in itertools.combinations(self.dimensions, 2):
            for left, right in itertools.product(first.values, other.values):
                pair = f"{first.name}={left}", f"{other.name}={right}"
                if not self._is_apart(pair, first.name, other.name):
                    yield pair

    def _is_apart(self, pair: tuple[str, str], first: str, other: str) -> bool:
        left, right = pair
        named = {(left, right), (left, f"{other}=*"), (f"{first}=*", right), (f"{first}=*", f"{other}=*")}
        return any(both in self.apart or both[::-1] in self.apart for both in named)

    def seen(self, request: Request) -> Iterator[frozenset[str]]:
        """The values of each case of a request, as `dimension=value`.

        Raises:
            ValueError: a case has a value that its dimension does not know.
        """
        for case in self.cases(request):
            values = {dimension.name: dimension.of(case) for dimension in self.dimensions}
            for dimension in self.dimensions:
                value = values[dimension.name]
                if value is not None and value not in dimension.values:
                    raise ValueError(f"{request.probe}: {dimension.name} has no value {value!r}")
            yield frozenset(f"{name}={value}" for name, value in values.items() if value is not None)


def drawable(dimensions: Mapping[str, Mapping[str, Sequence[object]]]) -> dict[str, list[object]]:
    """What cases are drawn from (`grader.shared.cases`): for each dimension what its values, by name, are drawn as."""
    return {name: list(itertools.chain.from_iterable(values.values())) for name, values in dimensions.items()}
