"""Judges plots of speedups: they must show the comparisons that they were given, wherever and however these are drawn.

Lines, points, bars and areas all count. Not for looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gradebox.run.assertions import Cause, require
from grader.lab1.benchmark.cases import Measured
from grader.lab1.shared.cases.plots import Axes, Point
from grader.lab1.shared.checks.pictures import near

UNSORTED = Cause(
    "speedups_in_the_order_given",
    "Sort the comparisons by size before you draw a line through them: they may come in any order.",
    "lab1.benchmark.results_and_plot_saved",
    mistake="The line of speedups joins the sizes in the order given, so it goes to and fro",
)
_MOST_UNNAMED = 3
"""Lines in one plot without a legend: the speedup and perhaps both sides' seconds."""
_POINTS = "Draw one point per comparison: its size, and CPU seconds / GPU seconds."


def require_speedups_drawn(axes: Sequence[Axes], rows: Sequence[Measured], what: str) -> None:
    """Fail unless speedup is drawn over size (or its place in a list of sizes), and a line at 1."""
    speedups = {size: cpu / gpu for size, cpu, gpu in rows}
    drawn = [series for shown in axes for series in shown.series]
    listed = ", ".join(f"{size:g}: {speedups[size]:.4g}" for size in sorted(speedups))
    require(
        any(_speedups_in(series, speedups) for series in drawn),
        f"{what} does not draw the speedup over the size ({listed})",
        _symptom(drawn, rows),
    )
    unnamed = max((_unnamed(shown, len(speedups)) for shown in axes), default=0)
    require(
        unnamed <= _MOST_UNNAMED,
        f"{what}: one plot has {unnamed} lines without a name, and nothing says which of them is the speedup",
        "Name each line in a legend, or draw the speedup alone.",
    )
    lines = [line for shown in axes for line in shown.lines]
    require(
        all(_in_order(line, speedups) for line in lines),
        f"{what}: the line through the speedups goes to and fro between the sizes ({listed})",
        UNSORTED,
    )
    require(
        any(near(level, 1) for shown in axes for level in shown.levels),
        f"{what}: there is no line at a speedup of 1",
        "Draw a line at 1 through the whole width of the plot, in a colour that is seen: above it the GPU is faster.",
    )


def _unnamed(axes: Axes, sizes: int) -> int:
    """How many lines through all sizes are in axes beyond those that a text in them can name."""
    return sum(len(line) >= max(2, sizes) for line in axes.lines) - axes.names


def _speedups_in(series: Iterable[Point], speedups: Mapping[float, float]) -> bool:
    """Whether a series has every speedup over its size; over logarithms of sizes, or places, in an order of sizes."""
    points = [(x, y) for x, y in series if any(near(y, value) for value in speedups.values())]
    if all(any(near(x, size) and near(y, value) for x, y in points) for size, value in speedups.items()):
        return True
    if any(near(x, size) for x, _ in points for size in speedups if x > 64):
        return False  # at sizes, and not at their own
    in_order = [y for _, y in sorted(points)]
    orders = (list(speedups), sorted(speedups))
    return any(
        len(in_order) >= len(order)
        and all(any(near(y, speedups[size]) for y in in_order) for size in order)
        and (len(in_order) != len(order) or all(map(near, in_order, (speedups[size] for size in order))))
        for order in orders
    )


def _in_order(line: Sequence[Point], speedups: Mapping[float, float]) -> bool:
    """Whether a line goes from size to size, up or down, if it is one through all speedups at their sizes."""
    sizes = [size for x, y in line for size, value in speedups.items() if near(x, size) and near(y, value)]
    if set(sizes) != set(speedups):
        return True
    return sizes in (sorted(sizes), sorted(sizes, reverse=True))


def _symptom(drawn: Iterable[Iterable[Point]], rows: Sequence[Measured]) -> str:
    """What is drawn instead."""
    heights = [y for series in drawn for _, y in series]
    kinds = (
        ("seconds_of_the_gpu", "the GPU's seconds are drawn instead of the speedup", [row[2] for row in rows]),
        ("seconds_of_the_cpu", "the CPU's seconds are drawn instead of the speedup", [row[1] for row in rows]),
        ("upside_down", "GPU time / CPU time is drawn instead of the speedup", [row[2] / row[1] for row in rows]),
        ("at_other_sizes", "each speedup is drawn, but not over its own size", [row[1] / row[2] for row in rows]),
    )
    for name, mistake, values in kinds:
        for unit in (1, 1e3, 1e6):
            if all(any(near(y, value * unit) for y in heights) for value in values):
                return Cause(f"drawn_{name}", _POINTS, mistake=f"In the plot of speedups {mistake}")
    return _POINTS
