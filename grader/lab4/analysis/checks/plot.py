"""Judges the plot of Lab 4's prediction: the parts of each step, stacked, and a mark at what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from gradebox.run.assertions import require
from grader.lab4.analysis.cases import PARTS, Result
from grader.lab4.shared.cases import Shown
from grader.lab4.shared.checks import MEBIBYTE, NEAR, all_points, near, require_named

Bar: TypeAlias = list[float]
"""Left, right, bottom and top."""


def require_shown(shown: Shown, rows: list[Result]) -> None:
    """Fail unless the plot shows these results."""
    bars: list[Bar] = [bar for axes in shown.axes for bar in axes.bars]
    points = [point for axes in shown.axes for point in all_points(axes)]
    if _are_upright(bars, rows):  # the same picture, turned
        bars = [[bottom, top, left, right] for left, right, bottom, top in bars]
        points = [(y, x) for x, y in points]
    for row in rows:
        _require_row(bars, points, row)
    words = ("parameter", "gradient", "optimizer", "activation")
    require_named(shown, words, "plot_memory() does not say which part of a bar is which")


def _require_row(bars: Sequence[Bar], points: Sequence[Sequence[float]], row: Result) -> None:
    """Fail unless one result is a stack of its parts, with a mark."""
    what = f"plot_memory(), {row['setup']['optimizer']}"
    parts = [row["predicted"][part] / MEBIBYTE for part in PARTS]
    own = sorted(bar for bar in bars if any(value and near(bar[1] - bar[0], value) for value in parts))
    predicted = ", ".join(f"{value:.5g}" for value in parts)
    for value in parts:
        require(
            not value or any(near(bar[1] - bar[0], value) for bar in own),
            f"{what}: no bar is {value:.5g} MiB long; the parts predicted are {predicted} MiB",
            "Draw a bar of parameters, gradients, optimizer state and activations, in MiB.",
        )
    total, ends = sum(parts), [0.0, *(bar[1] for bar in own)]
    require(
        all(abs(bar[0] - end) < NEAR * total for bar, end in zip(own, ends[:-1], strict=True))
        and max(bar[2] for bar in own) < min(bar[3] for bar in own),
        f"{what}: its parts begin at {', '.join(f'{bar[0]:.5g}' for bar in own)} MiB and end at "
        f"{', '.join(f'{end:.5g}' for end in ends[1:])}",
        "Stack the parts: each begins where all before it end, so that the end of the bar is their sum.",
    )
    measured = sum(row["measured"][part] for part in PARTS) / MEBIBYTE
    require(
        any(near(x, measured) and own[0][2] <= y <= own[0][3] for x, y in points),
        f"{what}: no mark on its bar at the {measured:.5g} MiB that were measured",
        "Draw a mark at the measured total, on the bar of the prediction.",
    )


def _are_upright(bars: Sequence[Bar], rows: Sequence[Result]) -> bool:
    """Whether the bars are as high as the parts predicted, rather than as wide."""
    values = [row["predicted"][part] / MEBIBYTE for row in rows for part in PARTS if row["predicted"][part]]
    wide = sum(any(near(right - left, value) for value in values) for left, right, _, _ in bars)
    return sum(any(near(top - bottom, value) for value in values) for _, _, bottom, top in bars) > wide
