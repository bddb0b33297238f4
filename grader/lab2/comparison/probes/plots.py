"""Probes of Lab 2's plots: of made-up results, and by the programs; and what is in the figure that is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike

from gradebox.sandbox.probe_loader import Student
from grader.lab2.comparison.cases.plots import Figure, Plot, Plots, PlotsReply, Program, ProgramReply, Row, Series
from grader.shared.probes.figures import watch_png
from grader.shared.probes.ink import seen
from grader.shared.probes.support import run_program
from labkit.results import AmpTraining, PrecisionResult, StabilityRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as DrawnFigure

_PLOTTED: dict[str, tuple[str, type]] = {
    "plot_losses": ("lab2_mixed_precision.amp_training", AmpTraining),
    "plot_runs": ("lab2_mixed_precision.stability_tests", StabilityRun),
    "plot_precisions": ("lab2_mixed_precision.precision_comparison", PrecisionResult),
}
"""By function, where it is and what it is given."""


def plots(student: Student, inputs: Plots) -> PlotsReply:
    """Each plot of its rows."""
    return PlotsReply({name: _plot(student, name.split()[0], rows) for name, rows in inputs.rows.items()})


def _plot(student: Student, function: str, rows: Sequence[Row]) -> Plot:
    module, kind = _PLOTTED[function]
    results = [
        kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}) for row in rows
    ]
    plot = getattr(student.module(module), function)
    with TemporaryDirectory() as folder, watch_png(_figure) as drawn:
        path = Path(folder) / f"{function}.png"
        returned = plot(results, path)
        written = path.is_file()
        try:
            plot(results, path / "below a file.png")
        except OSError:
            refused = True
        else:
            refused = False
    return Plot(
        figure=drawn[0] if drawn else {}, path_returned=str(returned) == str(path), written=written, refused=refused
    )


def program(student: Student, inputs: Program) -> ProgramReply:
    """Run a program, and look at what it wrote."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, watch_png(_figure) as drawn:
        written = run_program(student, inputs.module, inputs.command_line, Path(folder, "results"))
    return ProgramReply(**written, figure=drawn[-1] if drawn else {})


def _figure(figure: DrawnFigure) -> Figure:
    from matplotlib.legend import Legend
    from matplotlib.text import Text

    return {
        "series": [series for axes in figure.axes for series in _series(axes)],
        "axes": [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes],
        "legend": [text.get_text() for legend in figure.findobj(Legend) for text in legend.get_texts()],
        "texts": [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()],
    }


def _series(axes: Axes) -> Iterator[Series]:
    """Of lines, bars and points: the numbers that can be seen, so not what the axes' limits cut off."""
    x_ticks, y_ticks = _ticks(axes.xaxis), _ticks(axes.yaxis)
    inked = {id(artist) for artist in seen(axes)}
    limits = sorted(axes.get_xlim()), sorted(axes.get_ylim())

    def series(label: object, points: ArrayLike) -> Series:
        visible = [point for point in _finite(points) if all(map(_is_within, point, limits))]
        return {"label": str(label), "points": visible, "cut_off": [], "x_ticks": x_ticks, "y_ticks": y_ticks}

    for line in axes.get_lines():
        if id(line) in inked:
            drawn = series(line.get_label(), line.get_xydata())
            yield {**drawn, "cut_off": [point for point in _finite(line.get_xydata()) if point not in drawn["points"]]}
    in_groups = {id(patch) for group in axes.containers for patch in group if hasattr(patch, "get_height")}
    groups = [(group.get_label(), list(group)) for group in axes.containers]
    groups.append(("", [patch for patch in axes.patches if id(patch) not in in_groups]))
    for label, patches in groups:
        bars = [patch for patch in patches if hasattr(patch, "get_height") and id(patch) in inked]
        middles = [(bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height() / 2) for bar in bars]
        yield series(label, [(x, bar.get_height()) for (x, _), bar in zip(middles, bars, strict=True)])
        yield series(label, [(bar.get_width(), y) for (_, y), bar in zip(middles, bars, strict=True)])
    for collection in axes.collections:
        if id(collection) in inked:
            yield series(collection.get_label(), collection.get_offsets())


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    """Places with what is written there."""
    return [
        (float(place), label.get_text())
        for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
    ]


def _is_within(number: float, limits: Sequence[float]) -> bool:
    """Whether an axis shows a number; one that is right at its end counts."""
    low, high = limits
    slack = 1e-6 * (high - low)
    return low - slack <= number <= high + slack


def _finite(points: ArrayLike) -> list[list[float]]:
    array = np.asarray(points, dtype=float).reshape(-1, 2)
    rows: list[list[float]] = array[np.isfinite(array).all(axis=1)].tolist()
    return rows
