"""What a failed check can show next to its words: what the submission did, and what was expected, as data.

A page draws it (`report/drawing.py`); grade.json carries it, so that others can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MOST_MARKS = 80
"""Of a panel: a page with a picture at every check stays small."""
_MOST_TEXT = 60


@dataclass(frozen=True)
class Mark:
    """Something with a place and a size."""

    lane: str
    """Of a timeline, the row (`host`, `stream 0`); of bars, what the bar is about; of a curve, empty."""
    at: float
    """Where it begins: of a timeline in seconds, of a curve the index; of bars 0."""
    size: float
    """Its duration in seconds, or its value."""
    label: str = ""


@dataclass(frozen=True)
class Panel:
    """Marks that belong together."""

    title: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Picture:
    """Panels of the same kind: what was seen, and what was expected where that is known."""

    kind: Literal["timeline", "bars", "curve"]
    about: str
    """What is shown, in a sentence, for those who do not see it, too."""
    unit: str
    """Of sizes: `s`, `MiB`, or nothing."""
    panels: tuple[Panel, ...]


def curve(what: str, actual: NDArray[Any], expected: NDArray[Any]) -> Picture | None:
    """Two arrays of real numbers of one shape, element by element; of large ones some, the first that differs among
    them. None where a picture would say no more than the words."""
    actual, expected = actual.ravel(), expected.ravel()
    if actual.size < 3 or actual.dtype.kind == "c" or not (np.isfinite(actual).all() and np.isfinite(expected).all()):
        return None
    places = np.unique(np.linspace(0, actual.size - 1, MOST_MARKS - 1).astype(int))
    places = np.union1d(places, [int(np.argmax(np.abs(actual - expected)))])
    return Picture(
        "curve",
        f"{what}: the values by index, yours and those expected",
        "",
        tuple(
            Panel(title, tuple(Mark("", float(place), float(values[place])) for place in places))
            for title, values in (("yours", actual), ("expected", expected))
        ),
    )


def bars(what: str, unit: str, actual: Sequence[tuple[str, float]], expected: Sequence[tuple[str, float]]) -> Picture:
    """Values by name, side by side."""
    return Picture(
        "bars",
        f"{what}, yours and expected",
        unit,
        tuple(
            Panel(title, tuple(Mark(name, 0.0, float(value)) for name, value in rows[:MOST_MARKS]))
            for title, rows in (("yours", actual), ("expected", expected))
        ),
    )


def timeline(panels: Iterable[tuple[str, Sequence[Sequence[Any]]]]) -> Picture | None:
    """What ran on a device: for each panel rows of lane, begin, seconds and label, as a device has shown them.

    None where nothing ran. Rows come from a process that a submission sent words to: what is no row is left out.
    """
    made = tuple(Panel(title, tuple(_marks(rows))) for title, rows in panels)
    made = tuple(panel for panel in made if panel.marks)
    if not made:
        return None
    return Picture("timeline", "The last that the host launched, and when the device did it", "s", made)


def _marks(rows: Sequence[Sequence[Any]]) -> Iterable[Mark]:
    for row in rows[:MOST_MARKS]:
        match row:
            case [str(lane), int() | float() as at, int() | float() as size, str(label)]:
                if math.isfinite(at) and math.isfinite(size):
                    yield Mark(lane[:_MOST_TEXT], float(at), float(size), label[:_MOST_TEXT])
