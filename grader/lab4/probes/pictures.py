"""Probes of what Lab 4's plots show of made-up results, and of what its programs write and print. No answers here."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grader.shared.probes.figures import watch_png, words_of
from grader.shared.probes.support import plain, run_program
from labkit.results import (
    AttentionResult,
    CheckpointingResult,
    MemoryComparison,
    MemoryPrediction,
    TrainingSetup,
)

_PLOTS: dict[str, tuple[str, str, type[Any]]] = {
    "checkpointing": ("lab4_memory.gradient_checkpointing", "plot_checkpointing", CheckpointingResult),
    "attention": ("lab4_memory.flash_attention", "plot_attention", AttentionResult),
    "memory": ("lab4_memory.memory_analysis", "plot_memory", MemoryComparison),
}


def program(student: Any, *, module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run `module` with these arguments: what it wrote, `printed`, all of its output, and each figure's `words`."""
    torch.set_num_threads(1)
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed), watch_png(words_of) as words:
        told = run_program(student, module, arguments, Path(folder, "results"))
    return {**told, "printed": printed.getvalue(), "words": words}


def plots(student: Any, *, kind: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The plot of `kind` drawn of the results in `rows`, and once more to a file that cannot be written."""
    module, name, result = _PLOTS[kind]
    plot = getattr(student.module(module), name)
    results = [_comparison(**row) if kind == "memory" else result(**row) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a plot.png")
        with watch_png(_shown) as figures:
            returned = plain(str(plot(results, path)), name)
        is_picture = path.is_file() and path.read_bytes().startswith(b"\x89PNG")
        no_folder = Path(folder, "file")
        no_folder.touch()
        try:
            plot(results, no_folder / "plot.png")
            refused = None
        except OSError:
            refused = "OSError"
        except Exception as error:
            refused = type(error).__name__
        shown = figures[-1] if figures else {"axes": [], "legend": [], "texts": []}
        return {"is_its_path": returned == str(path), "is_picture": is_picture, "shown": shown, "refused": refused}


def _comparison(setup: dict[str, Any], predicted: dict[str, int], measured: dict[str, int]) -> MemoryComparison:
    return MemoryComparison(
        setup=TrainingSetup(**setup), predicted=MemoryPrediction(**predicted), measured=MemoryPrediction(**measured)
    )


def _shown(figure: Any) -> dict[str, Any]:
    axes = [one for one in figure.axes if one.get_visible()]
    legends = [*figure.legends, *(one.get_legend() for one in axes if one.get_legend() is not None)]
    texts = [text.get_text() for one in (figure, *axes) for text in one.texts]
    return {
        "axes": [_axes(one, axes) for one in axes],
        "legend": [text.get_text() for legend in legends for text in legend.get_texts()],
        "texts": texts,
    }


def _axes(axes: Any, all_axes: Sequence[Any]) -> dict[str, Any]:
    """Lines (points of each), single marks, bars (left, right, bottom, top), scales, labels, and a shared y axis."""
    from matplotlib import collections as groups
    from matplotlib import lines, patches

    kinds: Any = lines, groups
    drawn: list[Any] = []
    marks: list[Any] = [text.xy if hasattr(text, "xy") else text.get_position() for text in axes.texts]
    bars: list[list[float]] = []
    for artist in axes.get_children():
        if artist is axes.patch or not artist.get_visible():
            continue
        if isinstance(artist, kinds[0].Line2D):
            if artist.get_transform().contains_branch(axes.transData):
                drawn.append(artist.get_xydata())
        elif isinstance(artist, kinds[1].LineCollection):
            # A stroke is a mark at its middle.
            drawn += artist.get_segments()
            marks += [np.asarray(segment, dtype=float).mean(axis=0) for segment in artist.get_segments()]
        elif isinstance(artist, kinds[1].Collection):
            if artist.get_offset_transform().contains_branch(axes.transData):
                marks += list(artist.get_offsets())
        elif isinstance(artist, patches.Rectangle) and artist.get_transform().contains_branch(axes.transData):
            x, y, width, height = artist.get_x(), artist.get_y(), artist.get_width(), artist.get_height()
            bars.append([float(side) for side in (min(x, x + width), max(x, x + width), y, y + height)])
    shared = axes.get_shared_y_axes()
    return {
        "lines": [_points(points) for points in drawn],
        "marks": _points([tuple(mark) for mark in marks]),
        "bars": bars,
        "scales": [axes.get_xscale(), axes.get_yscale()],
        "labels": [axes.get_xlabel(), axes.get_ylabel(), axes.get_title()],
        "shares_y": any(other is not axes and shared.joined(axes, other) for other in all_axes),
    }


def _points(points: Any) -> list[list[float]]:
    """Those that are finite, as lists."""
    rows = np.asarray(points, dtype=float).reshape(-1, 2)
    finite: list[list[float]] = rows[np.isfinite(rows).all(axis=1)].tolist()
    return finite
