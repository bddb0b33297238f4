"""Rows of values for the cases of one grading: each value at least once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradebox.run.input_generator import InputGenerator

_ATTEMPTS = 20
"""Draws, until one has every value."""


def every_value(
    generator: InputGenerator,
    dimensions: Mapping[str, Sequence[Any]],
    count: int,
    allowed: Callable[[Mapping[str, Any]], bool] = lambda row: True,
) -> list[dict[str, Any]]:
    """`InputGenerator.cases`, and more rows until each value of each dimension has occurred.

    Args:
        dimensions: the values of each, by name.
        count: rows at least.
        allowed: whether the values of a row can be together; each value must be in one that is.
    """
    rows = generator.cases(dimensions, count, allowed)
    for name, values in dimensions.items():
        for value in values:
            if all(row[name] != value for row in rows):
                rows += generator.cases({**dimensions, name: [value]}, 1, allowed)
    return rows


def full_rows(
    generator: InputGenerator,
    dimensions: Mapping[str, Sequence[Any]],
    count: int,
    allowed: Callable[[Mapping[str, Any]], bool] = lambda row: True,
) -> list[dict[str, Any]]:
    """As `every_value`, but `count` rows and no more: values that no row has take the place of some that several have.

    Where so few rows cannot have every value, those that have most.
    """
    best: list[dict[str, Any]] = []
    least = sum(len(values) for values in dimensions.values()) + 1
    for attempt in range(_ATTEMPTS):
        source = generator if attempt == 0 else generator.shared(f"rows, attempt {attempt}")
        rows = source.cases(dimensions, count, allowed)
        missing = sum(not _put_in(rows, name, one, allowed) for name, values in dimensions.items() for one in values)
        if missing < least:
            best, least = rows, missing
        if not missing or any(len(values) > count for values in dimensions.values()):
            break
    return best


def _put_in(
    rows: Sequence[dict[str, Any]], name: str, value: Any, allowed: Callable[[Mapping[str, Any]], bool]
) -> bool:
    """Let one of the rows have this value, where none has, instead of one that another has, too; whether one could."""
    column = [row[name] for row in rows]
    if value in column:
        return True
    for row in rows:
        if column.count(row[name]) > 1 and allowed({**row, name: value}):
            row[name] = value
            return True
    return False


def one_and_its_opposite(generator: InputGenerator, dimensions: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Two rows that have each of two values once, for what is too dear to be asked more than twice; in any order."""
    (row,) = generator.cases(dimensions, 1)
    opposite = {name: values[row[name] == values[0]] for name, values in dimensions.items()}
    return generator.shuffled([row, opposite])
