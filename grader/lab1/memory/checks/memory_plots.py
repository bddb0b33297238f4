"""Judges plots of memory: they must show the profiles that they were given, wherever and however these are drawn.

Lines, points, bars and areas all count. Not for looks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from gradebox.run.assertions import Cause, CheckFailed, require
from grader.lab1.memory.cases import FIGURES
from grader.lab1.shared.cases.plots import Axes
from grader.lab1.shared.checks.documents import Document
from grader.lab1.shared.checks.pictures import NEAR, near

_CHECK = "lab1.memory.memory_timeline_saved"
_UNITS = {1: "bytes", 1e3: "KB", 2**10: "KiB", 1e6: "MB", 2**20: "MiB", 1e9: "GB", 2**30: "GiB"}


def require_memory_drawn(axes: Sequence[Axes], profiles: Sequence[Mapping[str, Document]], what: str) -> None:
    """Fail unless allocated, reserved and peak memory of every profile are drawn in one unit and on one scale."""
    try:
        values = {
            (str(profile["dtype"]), figure): [float(stage[figure]) for stage in profile["stages"]]
            for profile in profiles
            for figure in FIGURES
        }
    except (KeyError, TypeError, ValueError):
        raise CheckFailed("the results hold no profiles", "Save what compare_precisions returns.") from None
    best: tuple[int, list[str]] = (-1, [])
    for side in (1, 0):
        heights = sorted(point[side] for shown in axes for series in shown.series for point in series)
        for unit, name in _UNITS.items():
            there = {key: all(_among(heights, value / unit) for value in row) for key, row in values.items()}
            if all(there.values()):
                _require_unit_named(axes, side, name, what)
                _require_one_scale(axes, side, [value / unit for row in values.values() for value in row], what)
                for (dtype, figure), row in values.items():
                    _require_stages_in_order(
                        axes, side, [value / unit for value in row], f"{what}: {figure} of {dtype}"
                    )
                return
            missing = [f"{figure} of {dtype}" for (dtype, figure), drawn in there.items() if not drawn]
            best = max(best, (sum(there.values()), [*missing, name]), key=lambda pair: pair[0])
    count, (*missing, unit_name) = best
    require(
        False,
        f"{what} does not show {missing[0]}"
        + (f" in {unit_name}, as it shows others" if count else " in bytes or MiB"),
        "Draw three figures for every stage of every profile, all in the same unit. Draw no bar over a smaller one.",
    )


_MEANT = {
    "bytes": ("bytes",), "KiB": ("KiB",), "MiB": ("MiB",), "GiB": ("GiB",),
    "KB": ("KB", "KiB"), "MB": ("MB", "MiB"), "GB": ("GB", "GiB"),
}  # fmt: skip
"""What a unit in a label may stand for: many write MB for 2^20 bytes."""


def _require_unit_named(axes: Sequence[Axes], side: int, drawn: str, what: str) -> None:
    """Fail if a label names another unit than what is drawn, unless the numbers at the axis are made by hand."""
    for shown in axes:
        said = [unit for unit in _MEANT if re.search(rf"\b{unit}\b", shown.labels[side])]
        if said and shown.plain_numbers[side]:
            require(
                any(drawn in _MEANT[unit] for unit in said),
                f"{what}: the axis says {said[0]}, and what is drawn are {drawn}",
                Cause(
                    "unit_of_the_memory_plot",
                    "Divide what is drawn, or change the label.",
                    _CHECK,
                    mistake=f"The axis of the memory plot says {said[0]}, and what is drawn are {drawn}",
                ),
            )


def _require_stages_in_order(axes: Sequence[Axes], side: int, row: Sequence[float], what: str) -> None:
    """Fail unless some axes show these values one stage after the other; if they show all of them."""
    shows_all = False
    for shown in axes:
        points = [point for series in shown.series for point in series]
        places = [sorted(point[1 - side] for point in points if near(point[side], value)) for value in row if value]
        shows_all = shows_all or all(places)
        for order in (places, places[::-1]):  # from above or from below
            at = -math.inf
            for choices in order:
                at = next((place for place in choices if place > at), math.inf)
            if at < math.inf:
                return
    require(
        not shows_all,
        f"{what} is not drawn over the stages in their order",
        "Draw each figure over the name of its stage.",
    )


def _require_one_scale(axes: Sequence[Axes], side: int, values: Sequence[float], what: str) -> None:
    """Fail unless all axes that show some of `values` have the same limits."""
    limits = []
    for shown in axes:
        heights = sorted(point[side] for series in shown.series for point in series)
        if any(value > 0 and _among(heights, value) for value in values):
            limits.append(shown.y_limits if side else shown.x_limits)
    require(
        all(near(a, b) or abs(a - b) < NEAR for limit in limits for a, b in zip(limit, limits[0], strict=True)),
        f"{what}: the axes have scales of their own, up to {', '.join(f'{limit[1]:.4g}' for limit in limits)}",
        Cause(
            "scales_of_the_memory_plot",
            "Let the axes share their scale: the same height is the same memory.",
            _CHECK,
            mistake="Each profile is drawn on a scale of its own",
        ),
    )


def _among(heights: Sequence[float], value: float) -> bool:
    """Whether one of `heights` is `value`."""
    return any(near(height, value) for height in heights) or value == 0
