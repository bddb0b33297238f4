"""A chart of the checks of a class: how many pass each, and whether it separates strong from weak submissions.

The figures are those of `statistics.py`; here they become places in a drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradebook.export.statistics import EVERYBODY, CheckStatistics

LOWEST, HIGHEST = -0.4, 1.0
"""Of the vertical axis; what lies beyond is drawn on its edge."""
TELLS = 0.2
"""Above this, a check separates strong from weak; Ebel, "Essentials of educational measurement", 1972, of the 27 %
index, and usual for the corrected item-total correlation as well."""


@dataclass(frozen=True)
class Dot:
    """One check, or several in the same place."""

    across: float
    """0: nobody passes, 1: everybody."""
    up: float
    """0: the lower edge, 1: the upper one."""
    kind: str
    """`negative`, `weak`, or `good`."""
    checks: tuple[CheckStatistics, ...]


def dots(rows: Sequence[CheckStatistics]) -> tuple[Dot, ...]:
    """The checks whose correlation is defined, those with the same figures together."""
    places: dict[tuple[float, float], list[CheckStatistics]] = {}
    for row in rows:
        if row.item_rest is not None:
            places.setdefault((round(row.share_passed, 2), round(row.item_rest, 2)), []).append(row)
    return tuple(
        Dot(across, height(up), "negative" if up < 0 else "weak" if up < TELLS else "good", tuple(those))
        for (across, up), those in sorted(places.items())
    )


def height(value: float) -> float:
    """A correlation as a place on the vertical axis, 0 to 1."""
    return (min(HIGHEST, max(LOWEST, value)) - LOWEST) / (HIGHEST - LOWEST)


def undrawn(rows: Sequence[CheckStatistics]) -> int:
    """How many checks have no correlation, because everybody or nobody passes them."""
    return sum(row.item_rest is None and (row.flag == EVERYBODY or row.passed == 0) for row in rows)


def weakest(rows: Sequence[CheckStatistics]) -> tuple[CheckStatistics, ...]:
    """The checks that separate strong from weak least, those below `TELLS`, the lowest first."""
    weak = [row for row in rows if row.item_rest is not None and row.item_rest < TELLS]
    return tuple(sorted(weak, key=lambda row: row.item_rest or 0.0))
