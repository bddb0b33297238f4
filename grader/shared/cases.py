"""Rows of values for the cases of one grading: each value at least once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradebox.fresh import Fresh


def every_value(
    fresh: Fresh,
    dimensions: Mapping[str, Sequence[Any]],
    count: int,
    allowed: Callable[[Mapping[str, Any]], bool] = lambda row: True,
) -> list[dict[str, Any]]:
    """`Fresh.cases`, and rows more until each value of each dimension has been there: so many questions ask them all.

    Args:
        dimensions: the values of each, by name.
        count: rows at least.
        allowed: whether the values of a row can be together; each value must be in one that is.
    """
    rows = fresh.cases(dimensions, count, allowed)
    for name, values in dimensions.items():
        for value in values:
            if all(row[name] != value for row in rows):
                rows += fresh.cases({**dimensions, name: [value]}, 1, allowed)
    return rows


def one_and_its_opposite(fresh: Fresh, dimensions: Mapping[str, tuple[Any, Any]]) -> list[dict[str, Any]]:
    """Two rows that have each of two values once, for what is too dear to be asked more than twice; in any order."""
    (row,) = fresh.cases(dimensions, 1)
    opposite = {name: values[row[name] == values[0]] for name, values in dimensions.items()}
    return fresh.shuffled([row, opposite])
