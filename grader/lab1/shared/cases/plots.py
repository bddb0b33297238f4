"""What crosses the border to probes of Lab 1's plots: what is drawn where."""

from __future__ import annotations

from dataclasses import dataclass

Point = list[float]
"""Its x and its y."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """What the axes of a figure show, in the data's units."""

    series: list[list[Point]]
    """Lines, points, bars and areas."""
    lines: list[list[Point]]
    """Those series that are lines through their points, in the order in which these are joined."""
    names: int
    """Texts in them or in a legend, which can say what a series is."""
    levels: list[float]
    """Heights of lines across."""
    labels: list[str]
    """Of x and y, like the three below."""
    plain_numbers: list[bool]
    """Whether the numbers at an axis are those of the data, and not made by hand."""
    x_limits: list[float]
    y_limits: list[float]


@dataclass(frozen=True, kw_only=True)
class WrittenPlot:
    """What became of a call that writes a plot."""

    returned: str
    requested: str
    """The path that it was given."""
    written: bool


@dataclass(frozen=True, kw_only=True)
class PicturesReply:
    """What a program wrote and drew, and what its plotting function draws of made-up results."""

    exit_code: object
    json: dict[str, str]
    """The texts of results files, by name."""
    pictures: dict[str, dict[str, float]]
    """Of each PNG file: `width`, `height`, `colours`, and `ground`, the share of its commonest colour."""
    drawn: list[int]
    """Points of data in each figure that was written."""
    shown: list[Axes]
    """The last figure that the program wrote."""
    words: list[list[str]]
    """All that is written in each figure."""
    plots: list[list[Axes]]
    """What each of the made-up results looks like."""
    paths: list[WrittenPlot]
    unwritable: str
    """How the function ended whose path cannot be written; "" if it returned."""
