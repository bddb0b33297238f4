"""Rows of values that meet: those of `Fresh.cases`, none of whose values is left out of a grading."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradebox.fresh import Fresh


def rows(
    fresh: Fresh,
    dimensions: Mapping[str, Sequence[Any]],
    count: int,
    allowed: Callable[[Mapping[str, Any]], bool] = lambda row: True,
) -> list[dict[str, Any]]:
    """`count` rows, at least as many as any dimension has values: every grading has every value.

    Ten gradings have nearly every pair; `tests/scenarios/inputs/lab5.py` says which have to be there.
    """
    for attempt in itertools.count():
        source = fresh if attempt == 0 else fresh.shared(f"rows, attempt {attempt}")
        drawn = source.cases(dimensions, count, allowed)
        if all(_put_in(drawn, name, value, allowed) for name, values in dimensions.items() for value in values):
            break
    return drawn


def _put_in(
    drawn: Sequence[dict[str, Any]], name: str, value: Any, allowed: Callable[[Mapping[str, Any]], bool]
) -> bool:
    """Let one of the rows have this value, where none has, instead of one that another has, too; whether one could."""
    column = [row[name] for row in drawn]
    if value in column:
        return True
    for row in drawn:
        if column.count(row[name]) > 1 and allowed({**row, name: value}):
            row[name] = value
            return True
    return False
