"""Judges where plots are written. What they show: each criterion by itself. Not for looks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from gradebox.run.assertions import Cause, CheckFailed, require, require_equal
from grader.lab1.shared.cases.plots import Axes, PicturesReply, Point

NEAR = 1e-3


def near(left: float, right: float) -> bool:
    """Whether two numbers in a plot are the same."""
    return math.isclose(left, right, rel_tol=NEAR, abs_tol=1e-12)


def require_written(function: str, reply: PicturesReply) -> None:
    """Fail unless a plot was written where it was asked for, and a place that cannot be written was an OSError."""
    for path in reply.paths:
        require(path.written, f"{function}(..., {path.requested!r}) wrote no such file")
        require_equal(path.returned, path.requested, what=f"{function}() returned")
    require_equal(
        reply.unwritable,
        "OSError",
        what=f"what {function}() raised for a path below a file",
        hint="Let the OSError pass: a plot that was not written must not look like one that was.",
    )


def require_visible(function: str, judge: Callable[[Sequence[Axes]], None], axes: Sequence[Axes], what: str) -> None:
    """Fail unless `judge` passes, also if it gets only what lies within the limits of the axes that `function` drew."""
    judge(axes)
    try:
        judge([_within_limits(shown) for shown in axes])
    except CheckFailed as error:
        limits = ", ".join(f"{min(shown.y_limits):.4g} to {max(shown.y_limits):.4g}" for shown in axes)
        cause = Cause(
            f"cut_off_in_{function}",
            "Leave the limits of the axes to matplotlib, or choose limits that hold every value.",
            mistake=f"The limits of the axes in {function} cut off a part of the data",
        )
        message = f"{what} is cut off by the limits of the axes ({limits}). Within these limits: {error.message}"
        raise CheckFailed(message, cause) from None


def _within_limits(shown: Axes) -> Axes:
    def kept(points: Sequence[Point]) -> list[Point]:
        return [[x, y] for x, y in points if _in(x, shown.x_limits) and _in(y, shown.y_limits)]

    return replace(
        shown,
        series=[kept(points) for points in shown.series],
        lines=[kept(points) for points in shown.lines],
        levels=[level for level in shown.levels if _in(level, shown.y_limits)],
    )


def _in(value: float, limits: Sequence[float]) -> bool:
    low, high = min(limits), max(limits)
    rounding = 1e-6 * (high - low)
    return low - NEAR * abs(low) - rounding <= value <= high + NEAR * abs(high) + rounding
