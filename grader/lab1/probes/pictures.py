"""Probes of Lab 1's plots: what is drawn where, by the programs and of made-up results. It knows no answers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradebox.sandbox.probe_loader import WrongReturn
from grader.shared.probes.figures import watch_png, words_of
from grader.shared.probes.support import run_program
from labkit.results import Comparison, MatmulResult, MemoryProfile, StageMemory


def benchmark(student: Any, *, arguments: Sequence[str], plots: Sequence[Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Run the benchmark program with these arguments; then `plot_speedup` of rows (size, CPU seconds, GPU seconds)."""
    made = [[_comparison(int(size), cpu, gpu) for size, cpu, gpu in rows] for rows in plots]
    return _program(student, "lab1_gpu_basics.benchmark", arguments, "plot_speedup", made)


def memory(student: Any, *, plots: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Run the memory program; then `plot_memory` of profiles (`dtype`, and `stages` with their figures)."""
    made = [
        [
            MemoryProfile(
                device="cuda", dtype=profile["dtype"], stages=tuple(StageMemory(**row) for row in profile["stages"])
            )
            for profile in profiles
        ]
        for profiles in plots
    ]
    return _program(student, "lab1_gpu_basics.memory_profiling", [], "plot_memory", made)


def _comparison(size: int, cpu: float, gpu: float) -> Comparison:
    sides = [
        MatmulResult(
            device=device, dtype="float32", size=size, iterations=9, seconds=took, tflops=2e-12 * size**3 / took
        )
        for device, took in (("cpu", cpu), ("cuda", gpu))
    ]
    return Comparison(size=size, cpu=sides[0], gpu=sides[1], speedup=cpu / gpu)


def _program(
    student: Any, module: str, arguments: Sequence[str], function: str, made: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """What `run_program` tells, with `shown`: the last figure written by it, and `words`: what stands in each;
    `plots`: what is shown by each call of `function`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, watch_png(_figure) as figures:
        with watch_png(words_of) as words:
            told = run_program(student, module, arguments, Path(folder, "results"))
        shown = figures[-1] if figures else []
        draw: Callable[..., Any] = getattr(student.module(module), function)
        plots, paths = [], []
        for number, given in enumerate(made):
            figures.clear()
            path = Path(folder, f"{function}-{number}.{'PNG' if number % 2 else 'png'}")  # written as it was given
            returned = draw(tuple(given), str(path) if number % 2 else path)
            plots.append(figures[-1] if figures else [])
            if not isinstance(returned, str | Path):
                raise WrongReturn(f"{function}() returned a {type(returned).__name__}, expected the path")
            paths.append({"returned": str(returned), "asked": str(path), "written": path.is_file()})
        (occupied := Path(folder, "occupied")).touch()
        try:
            draw(made[0], occupied / "plot.png")
            unwritable = ""
        except OSError:
            unwritable = "OSError"
        except Exception as error:
            unwritable = type(error).__name__
    return {**told, "shown": shown, "words": words, "plots": plots, "paths": paths, "unwritable": unwritable}


def _figure(figure: Any) -> list[dict[str, Any]]:
    """What the axes of a figure show."""
    return [_axes(axes) for axes in figure.axes if axes.get_visible()]


def _axes(axes: Any) -> dict[str, Any]:
    """Series of points (x, y) in the data's units, heights of lines across, and limits of both axes.

    `lines`: those series that are lines through their points, in the order in which these are joined.
    """
    from matplotlib import collections as groups
    from matplotlib import lines, patches, ticker

    kinds: Any = lines, groups, patches
    series: list[list[list[float]]] = []
    joined: list[list[list[float]]] = []
    levels: list[float] = []
    for artist in axes.get_children():
        if artist is axes.patch or not artist.get_visible():
            continue
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
    boxes = [patch for patch in axes.patches if isinstance(patch, patches.Rectangle) and patch.get_visible()]
    tops = [(box.get_x() + box.get_width() / 2, box.get_y() + box.get_height()) for box in boxes]
    sides = [(box.get_x() + box.get_width(), box.get_y() + box.get_height() / 2) for box in boxes]
    across = [(x, box.get_height()) for (x, _), box in zip(tops, boxes, strict=True)]
    along = [(box.get_width(), y) for (_, y), box in zip(sides, boxes, strict=True)]
    series += [_points(np.asarray(part, dtype=float).reshape(-1, 2)) for part in (tops, sides, across, along) if part]
    return {
        "series": series,
        "lines": joined,
        "levels": levels,
        "labels": [str(axes.get_xlabel()), str(axes.get_ylabel())],
        "plain_numbers": [
            isinstance(axis.get_major_formatter(), ticker.ScalarFormatter) for axis in (axes.xaxis, axes.yaxis)
        ],
        "x_limits": [float(limit) for limit in axes.get_xlim()],
        "y_limits": [float(limit) for limit in axes.get_ylim()],
    }


def _points(points: Any) -> list[list[float]]:
    """Those that are finite, as lists."""
    rows: list[list[float]] = points[np.isfinite(points).all(axis=1)].tolist()
    return rows
