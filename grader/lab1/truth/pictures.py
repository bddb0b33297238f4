"""What Lab 1's plots must show: the results they were given, wherever and however they are drawn.

Lines, points, bars and areas all count. Not for looks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradebox.run.assertions import CheckFailed, require, require_equal
from gradebox.run.input_generator import InputGenerator
from grader.shared.cases import one_and_its_opposite
from labkit.results import STAGES

_NEAR = 1e-3
_UNITS = {1: "bytes", 1e3: "KB", 2**10: "KiB", 1e6: "MB", 2**20: "MiB", 1e9: "GB", 2**30: "GiB"}
_FIGURES = ("allocated_bytes", "reserved_bytes", "peak_bytes")
_COMPARISONS = {"many": (False, True), "ascending": (False, True), "on both sides": (False, True)}
_PROFILES = {"several": (False, True), "nothing at first": (False, True)}


def made_up_comparisons(generator: InputGenerator) -> list[list[list[float]]]:
    """For each of two plots rows (size, CPU seconds, GPU seconds)."""
    plots = []
    for how in one_and_its_opposite(generator, _COMPARISONS):
        count = generator.integer(4, 6) if how["many"] else generator.integer(2, 3)
        rows = []
        for index in range(count):
            gpu = generator.log_uniform(1e-5, 1e-2)
            lost = how["on both sides"] and index % 2 == 0
            ratio = generator.log_uniform(0.1, 0.9) if lost else generator.log_uniform(1.1, 60)
            rows.append([float(generator.odd(100 + 500 * index, 500 + 500 * index)), gpu * ratio, gpu])
        if not how["ascending"]:
            rows = [rows[-1], *generator.shuffled(rows[:-1])]
        plots.append(rows)
    return plots


def made_up_profiles(generator: InputGenerator) -> list[list[dict[str, Any]]]:
    """For each of two plots profiles whose figures are all different, as the results' files have them."""
    plots = []
    for how in one_and_its_opposite(generator, _PROFILES):
        dtypes = ("float32", "float16", "bfloat16") if how["several"] else ("float32",)
        profiles = []
        for dtype in dtypes:
            stages: list[dict[str, Any]] = [
                {"stage": stage, **{figure: generator.integer(10**6, 9 * 10**8) for figure in _FIGURES}}
                for stage in STAGES
            ]
            if how["nothing at first"]:  # as on a GPU that nobody else uses
                stages[0] |= dict.fromkeys(_FIGURES, 0)
            profiles.append({"dtype": dtype, "stages": stages})
        plots.append(profiles)
    return plots


def require_speedups_drawn(axes: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[float]], what: str) -> None:
    """Fail unless speedup is drawn over size (or its place in a list of sizes), and a line at 1."""
    speedups = {size: cpu / gpu for size, cpu, gpu in rows}
    drawn = [series for one in axes for series in one["series"]]
    told = ", ".join(f"{size:g}: {speedups[size]:.4g}" for size in sorted(speedups))
    require(
        any(_speedups_in(series, speedups) for series in drawn),
        f"{what} does not draw the speedup over the size ({told})",
        _symptom(drawn, rows),
    )
    lines = [line for one in axes for line in one["lines"]]
    require(
        all(_in_order(line, speedups) for line in lines),
        f"{what}: the line through the speedups goes to and fro between the sizes ({told})",
        "comparisons may come in any order; a line through them goes from the smallest size to the largest",
    )
    require(
        any(_near(level, 1) for one in axes for level in one["levels"]),
        f"{what}: there is no line at a speedup of 1",
        "above that line the GPU is faster: it goes through the whole width of the plot",
    )


def _speedups_in(series: Iterable[Sequence[float]], speedups: Mapping[float, float]) -> bool:
    """Whether a series has every speedup over its size; over logarithms of sizes, or places, in an order of sizes."""
    points = [(x, y) for x, y in series if any(_near(y, value) for value in speedups.values())]
    if all(any(_near(x, size) and _near(y, value) for x, y in points) for size, value in speedups.items()):
        return True
    if any(_near(x, size) for x, _ in points for size in speedups if x > 64):
        return False  # at sizes, and not at their own
    in_order = [y for _, y in sorted(points)]
    orders = (list(speedups), sorted(speedups))
    return any(
        len(in_order) >= len(order)
        and all(any(_near(y, speedups[size]) for y in in_order) for size in order)
        and (len(in_order) != len(order) or all(map(_near, in_order, (speedups[size] for size in order))))
        for order in orders
    )


def _in_order(line: Sequence[Sequence[float]], speedups: Mapping[float, float]) -> bool:
    """Whether a line goes from size to size, up or down, if it is one through all speedups at their sizes."""
    sizes = [size for x, y in line for size, value in speedups.items() if _near(x, size) and _near(y, value)]
    if set(sizes) != set(speedups):
        return True
    return sizes in (sorted(sizes), sorted(sizes, reverse=True))


def _symptom(drawn: Iterable[Iterable[Sequence[float]]], rows: Sequence[Sequence[float]]) -> str:
    """What is drawn instead."""
    heights = [y for series in drawn for _, y in series]
    kinds = {
        "what is drawn are the seconds of the GPU: a speedup is a ratio of two times": [row[2] for row in rows],
        "what is drawn are the seconds of the CPU: a speedup is a ratio of two times": [row[1] for row in rows],
        "what is drawn is GPU time / CPU time: turn it over": [row[2] / row[1] for row in rows],
        "each speedup is drawn, but not over its own size": [row[1] / row[2] for row in rows],
    }
    for hint, values in kinds.items():
        for unit in (1, 1e3, 1e6):
            if all(any(_near(y, value * unit) for y in heights) for value in values):
                return hint
    return "one point per comparison: its size, and CPU seconds / GPU seconds"


def require_memory_drawn(axes: Sequence[Mapping[str, Any]], profiles: Sequence[Mapping[str, Any]], what: str) -> None:
    """Fail unless allocated, reserved and peak memory of every profile are drawn in one unit and on one scale."""
    try:
        values = {
            (str(profile["dtype"]), figure): [float(stage[figure]) for stage in profile["stages"]]
            for profile in profiles
            for figure in _FIGURES
        }
    except (KeyError, TypeError, ValueError):
        raise CheckFailed("the results hold no profiles", "save what compare_precisions returns") from None
    best: tuple[int, list[str]] = (-1, [])
    for side in (1, 0):
        heights = sorted(point[side] for one in axes for series in one["series"] for point in series)
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
            missing = [f"{figure} of {dtype}" for (dtype, figure), found in there.items() if not found]
            best = max(best, (sum(there.values()), [*missing, name]), key=lambda pair: pair[0])
    found, (*missing, unit_name) = best
    require(
        False,
        f"{what} does not draw {missing[0]}"
        + (f" in {unit_name}, as it draws others" if found else " in bytes or MiB"),
        "every stage of every profile has three figures, all in the same unit",
    )


_MEANT = {
    "bytes": ("bytes",), "KiB": ("KiB",), "MiB": ("MiB",), "GiB": ("GiB",),
    "KB": ("KB", "KiB"), "MB": ("MB", "MiB"), "GB": ("GB", "GiB"),
}  # fmt: skip
"""What a unit in a label may stand for: many write MB for 2^20 bytes."""


def _require_unit_named(axes: Sequence[Mapping[str, Any]], side: int, drawn: str, what: str) -> None:
    """Fail where a label names another unit than what is drawn; not where the numbers at the axis are made by hand."""
    for one in axes:
        said = [unit for unit in _MEANT if re.search(rf"\b{unit}\b", one["labels"][side])]
        if said and one["plain_numbers"][side]:
            require(
                any(drawn in _MEANT[unit] for unit in said),
                f"{what}: the axis says {said[0]}, and what is drawn are {drawn}",
                "divide what is drawn, or change the label",
            )


def _require_stages_in_order(axes: Sequence[Mapping[str, Any]], side: int, row: Sequence[float], what: str) -> None:
    """Fail unless some axes show these values one stage after the other; if they show all of them."""
    shown = False
    for one in axes:
        points = [point for series in one["series"] for point in series]
        places = [sorted(point[1 - side] for point in points if _near(point[side], value)) for value in row if value]
        shown = shown or all(places)
        for found in (places, places[::-1]):  # from above or from below
            at = -math.inf
            for choices in found:
                at = next((place for place in choices if place > at), math.inf)
            if at < math.inf:
                return
    require(not shown, f"{what} is not drawn over the stages in their order", "each figure over the name of its stage")


def _require_one_scale(axes: Sequence[Mapping[str, Any]], side: int, values: Sequence[float], what: str) -> None:
    """Fail unless all axes that show some of `values` have the same limits."""
    limits = []
    for one in axes:
        heights = sorted(point[side] for series in one["series"] for point in series)
        if any(value > 0 and _among(heights, value) for value in values):
            limits.append(one["y_limits" if side else "x_limits"])
    require(
        all(_near(a, b) or abs(a - b) < _NEAR for one in limits for a, b in zip(one, limits[0], strict=True)),
        f"{what}: the axes have scales of their own, up to {', '.join(f'{limit[1]:.4g}' for limit in limits)}",
        "side by side means that the same height is the same memory: the axes share their scale",
    )


def require_written(function: str, seen: Any) -> None:
    """Fail unless a plot was written where it was asked for, and a place that cannot be written was an OSError."""
    for path in seen.paths:
        require(path["written"], f"{function}(..., {path['asked']!r}) wrote no such file")
        require_equal(path["returned"], path["asked"], what=f"{function}() returned")
    require_equal(
        seen.unwritable,
        "OSError",
        what=f"what {function}() raised for a path that lies below a file",
        hint="a plot that was not written must not look like one that was",
    )


def _among(heights: Sequence[float], value: float) -> bool:
    """Whether one of `heights` is `value`."""
    return any(_near(height, value) for height in heights) or value == 0


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_NEAR, abs_tol=1e-12)
