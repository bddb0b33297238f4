"""Looks at Lab 1's plots: what is drawn where, by the programs and of made-up results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gradebox.sandbox.probe_loader import WrongReturn
from grader.lab1.shared.cases.plots import Axes, PicturesReply, Point, WrittenPlot
from grader.shared.probes.figures import watch_png, words_of
from grader.shared.probes.ink import seen
from labkit.results import Comparison, MatmulResult

Artist: TypeAlias = Any
"""Of matplotlib, whose annotations promise all that NumPy would take for an array."""


def comparison(size: int, cpu_seconds: float, gpu_seconds: float) -> Comparison:
    """A made-up comparison."""
    cpu, gpu = (
        MatmulResult(
            device=device, dtype="float32", size=size, iterations=9, seconds=took, tflops=2e-12 * size**3 / took
        )
        for device, took in (("cpu", cpu_seconds), ("cuda", gpu_seconds))
    )
    return Comparison(size=size, cpu=cpu, gpu=gpu, speedup=cpu_seconds / gpu_seconds)


def draw(
    program: Callable[[Path], dict[str, Any]],
    name: str,
    plotter: Callable[[], Callable[..., object]],
    made: Sequence[Sequence[object]],
) -> PicturesReply:
    """Run a program that writes results and plots into a folder, then its plotting function.

    Args:
        program: is given the folder; returns what `run_program` does.
        name: of the plotting function.
        plotter: finds that function, which is given results and a path.
        made: made-up results, a plot of each.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        with watch_png(_figure) as figures, watch_png(words_of) as words:
            written = program(Path(folder, "results"))
        shown = figures[-1] if figures else []
        plot = plotter()
        plots: list[list[Axes]] = []
        paths: list[WrittenPlot] = []
        for number, results in enumerate(made):
            path = Path(folder, f"{name}-{number}.{'PNG' if number % 2 else 'png'}")  # written as it was given
            with watch_png(_figure) as figures:
                returned = plot(tuple(results), str(path) if number % 2 else path)
            plots.append(figures[-1] if figures else [])
            if not isinstance(returned, str | Path):
                raise WrongReturn(f"{name}() returned a {type(returned).__name__}, expected the path")
            paths.append(WrittenPlot(returned=str(returned), requested=str(path), written=path.is_file()))
        (occupied := Path(folder, "occupied")).touch()
        try:
            plot(made[0], occupied / "plot.png")
            unwritable = ""
        except OSError:
            unwritable = "OSError"
        except Exception as error:
            unwritable = type(error).__name__
    return PicturesReply(**written, shown=shown, words=words, plots=plots, paths=paths, unwritable=unwritable)


def _figure(figure: Artist) -> list[Axes]:
    """What the axes of a figure show."""
    return [_axes(axes) for axes in figure.axes if axes.get_visible()]


def _axes(axes: Artist) -> Axes:
    """Series of points in the data's units, heights of lines across, and limits of both axes."""
    from matplotlib import collections as groups
    from matplotlib import lines, patches, ticker

    kinds: tuple[Artist, ...] = lines, groups, patches
    series: list[list[Point]] = []
    joined: list[list[Point]] = []
    levels: list[float] = []
    children = seen(axes)
    for artist in children:
        if isinstance(artist, kinds[0].AxLine):
            with suppress(TypeError):
                levels.append(float(artist.get_xy1()[1]))
        elif isinstance(artist, kinds[0].Line2D):
            points = _points(np.asarray(artist.get_xydata(), dtype=float))
            heights = {round(y, 9) for _, y in points}
            if len(heights) == 1 and len(points) > 1:
                levels.extend(heights)
            if artist.get_transform().contains_branch_seperately(axes.transData) == (True, True):
                series.append(points)
                if str(artist.get_linestyle()) in ("-", "--", "-.", ":"):
                    joined.append(points)
        elif isinstance(artist, kinds[2].StepPatch):
            values, edges, _ = artist.get_data()
            series.append(_points(np.column_stack([(edges[1:] + edges[:-1]) / 2, values])))
        elif isinstance(artist, kinds[1].LineCollection):
            for segment in artist.get_segments():
                points = _points(np.asarray(segment, dtype=float))
                series.append(points)
                if len({round(y, 9) for _, y in points}) == 1 and len(points) > 1:
                    levels.append(round(points[0][1], 9))
        elif isinstance(artist, kinds[1].PathCollection):
            series.append(_points(np.asarray(artist.get_offsets(), dtype=float)))
        elif isinstance(artist, kinds[1].Collection):
            series += [_points(np.asarray(path.vertices, dtype=float)) for path in artist.get_paths()]
    boxes = [artist for artist in children if isinstance(artist, kinds[2].Rectangle)]
    tops = [(box.get_x() + box.get_width() / 2, box.get_y() + box.get_height()) for box in boxes]
    sides = [(box.get_x() + box.get_width(), box.get_y() + box.get_height() / 2) for box in boxes]
    across = [(x, box.get_height()) for (x, _), box in zip(tops, boxes, strict=True)]
    along = [(box.get_width(), y) for (_, y), box in zip(sides, boxes, strict=True)]
    series += [_points(np.asarray(part, dtype=float).reshape(-1, 2)) for part in (tops, sides, across, along) if part]
    legends = [legend for legend in (axes.get_legend(), *axes.figure.legends) if legend is not None]
    return Axes(
        series=series,
        lines=joined,
        names=len(axes.texts) + sum(len(legend.get_texts()) for legend in legends),
        levels=levels,
        labels=[str(axes.get_xlabel()), str(axes.get_ylabel())],
        plain_numbers=[
            isinstance(axis.get_major_formatter(), ticker.ScalarFormatter) for axis in (axes.xaxis, axes.yaxis)
        ],
        x_limits=[float(limit) for limit in axes.get_xlim()],
        y_limits=[float(limit) for limit in axes.get_ylim()],
    )


def _points(points: NDArray[np.float64]) -> list[Point]:
    """Those that are finite, as lists."""
    rows: list[Point] = points[np.isfinite(points).all(axis=1)].tolist()
    return rows
