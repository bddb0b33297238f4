"""Rows of cases, of which one grading shall have every value; see `gradebox.fresh.Fresh.cases`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradebox.fresh import Fresh

Row = dict[str, Any]
Dimensions = Mapping[str, Sequence[Any]]


def rows_with_every_value(
    fresh: Fresh,
    dimensions: Dimensions,
    count: int,
    allowed: Callable[[Mapping[str, Any]], bool] = lambda row: True,
) -> list[Row]:
    """Rows of `fresh.cases`, some of them changed so that each value occurs in this grading, where rows allow it."""
    rows = fresh.cases(dimensions, count, allowed)
    for name, values in dimensions.items():
        for value in values:
            present = [row[name] for row in rows]
            if value in present:
                continue
            for row in fresh.shuffled(rows):
                if present.count(row[name]) > 1 and allowed({**row, name: value}):
                    row[name] = value
                    break
    return rows
