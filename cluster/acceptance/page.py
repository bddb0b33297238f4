"""The report as a page for people: self-contained, no script. The facts are those of the JSON report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from cluster.acceptance.records import readable
from cluster.acceptance.verdict import PARTS

MOST_OF_A_MATRIX = 64
"""Ranks: more do not fit onto a page."""


def page(document: dict[str, Any]) -> str:
    """The page's text: self-contained, no script; everything that was measured or said is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["bytes"] = readable
    environment.filters["curve"] = curve
    environment.filters["figure"] = figure
    environment.filters["matrix"] = matrix
    return environment.get_template("report.html.jinja").render(report=document, parts=PARTS)


@dataclass(frozen=True)
class Cell:
    """One field of a matrix."""

    text: str
    share: float
    """Of the fastest one, from 0 to 1: how dark it is."""


def matrix(pairs: Sequence[Mapping[str, Any]]) -> list[list[Cell | None]]:
    """GB/s by rank and rank, as far as they met; nothing where there are too many to be looked at."""
    size = 1 + max((rank for pair in pairs for rank in pair["ranks"]), default=-1)
    if not 0 < size <= MOST_OF_A_MATRIX:
        return []
    rows: list[list[Cell | None]] = [[None] * size for _ in range(size)]
    fastest = max(pair["bytes_per_second"] for pair in pairs)
    for pair in pairs:
        first, second = pair["ranks"]
        rate = pair["bytes_per_second"]
        rows[first][second] = rows[second][first] = Cell(f"{rate / 1e9:.1f}", rate / fastest)
    return rows


def figure(value: float | str, form: str) -> str:
    """A number in a `%` format; what is no number ("NaN") as it is."""
    return value if isinstance(value, str) else form % value


def curve(values: Sequence[float | str], width: int = 640, height: int = 120) -> str:
    """Points of an SVG polyline through `values`, from 0 at the bottom to the largest at the top."""
    numbers = [value for value in values if not isinstance(value, str)]
    top = max(numbers, default=0.0) or 1.0
    step = width / max(1, len(numbers) - 1)
    return " ".join(f"{index * step:.1f},{height - height * value / top:.1f}" for index, value in enumerate(numbers))
