"""Probes that several criteria of Lab 4 use: what plots show, what programs write and print, and what calls refuse."""

from __future__ import annotations

import contextlib
import io
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from matplotlib import collections, lines, patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from gradebox.sandbox.probe_loader import Student
from gradebox.sandbox.probe_types import build
from grader.lab4.shared.cases import (
    Criterion,
    PlotKind,
    Plots,
    PlotsReply,
    Program,
    ProgramReply,
    Refusals,
    RefusalsReply,
    Shown,
    ShownAxes,
)
from grader.shared.probes.calls import on_device
from grader.shared.probes.endings import ending
from grader.shared.probes.figures import watch_png, words_of
from grader.shared.probes.ink import seen, under_bars
from grader.shared.probes.support import plain, run_program
from labkit.results import AttentionResult, CheckpointingResult, MemoryComparison, TrainingSetup

_PLOTS: Mapping[PlotKind, tuple[str, str, type]] = {
    "checkpointing": ("lab4_memory.gradient_checkpointing", "plot_checkpointing", CheckpointingResult),
    "attention": ("lab4_memory.flash_attention", "plot_attention", AttentionResult),
    "memory": ("lab4_memory.memory_analysis", "plot_memory", MemoryComparison),
}
_CHECKPOINTING, _ATTENTION = "lab4_memory.gradient_checkpointing", "lab4_memory.flash_attention"

_EDGE = 1e-6
"""Of an axis: by so much a point at its end may be outside."""
_DEFAULT_INTERVAL = 1
_SETUP = TrainingSetup(
    model="mlp",
    layers=3,
    width=64,
    heads=1,
    tokens=100,
    optimizer="adam",
    dtype="float32",
    checkpoint_every=None,
)
"""A step of which predictions make sense."""

Call: TypeAlias = Callable[[], object]
Calls: TypeAlias = Mapping[Criterion, Mapping[str, Call]]
"""By criterion, what the call is and the call."""


def hide_flash_attn() -> None:
    """Let nobody import flash-attn: on a virtual GPU no points depend on the package that is simulated there."""
    for name in ("flash_attn", "flash_attn.cute"):
        sys.modules[name] = None  # type: ignore[assignment]


def program(student: Student, inputs: Program) -> ProgramReply:
    """Run a program with these arguments; without a real GPU it takes a virtual one by itself."""
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        hide_flash_attn()
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed), watch_png(words_of) as words:
        left = run_program(student, inputs.module, inputs.command_line, Path(folder, "results"))
    return ProgramReply(**left, printed=printed.getvalue(), words=words)


def plots(student: Student, inputs: Plots) -> PlotsReply:
    """Draw the results in `rows`, and draw them again to a file that cannot be written."""
    module, name, kind = _PLOTS[inputs.kind]
    plot = getattr(student.module(module), name)
    results: list[object] = [build(kind, row, f"a result for {name}() has") for row in inputs.rows]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a plot.png")
        with watch_png(lambda figure: (_shown(figure), _shown(figure, cut=False))) as figures:
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
        return PlotsReply(
            is_its_path=returned == str(path),
            is_picture=is_picture,
            shown=figures[-1][0] if figures else Shown(axes=[], legend=[], texts=[]),
            drawn=figures[-1][1] if figures else Shown(axes=[], legend=[], texts=[]),
            refused=refused,
        )


def _shown(figure: Figure, *, cut: bool = True) -> Shown:
    """What a figure shows; not `cut`, all that is drawn: what its axes cut off, what is covered, what leaves no ink."""
    visible = [axes for axes in figure.axes if axes.get_visible()]
    legends = [*figure.legends, *(legend for axes in visible if (legend := axes.get_legend()) is not None)]
    return Shown(
        axes=[_shown_axes(axes, visible, cut=cut) for axes in visible],
        legend=[text.get_text() for legend in legends for text in legend.get_texts()],
        texts=[text.get_text() for texts in (figure.texts, *(axes.texts for axes in visible)) for text in texts],
    )


def _shown_axes(axes: Axes, all_axes: Sequence[Axes], *, cut: bool) -> ShownAxes:
    left, right = sorted(axes.get_xlim())
    bottom, top = sorted(axes.get_ylim())
    edges = (left, right, bottom, top)

    def inside(points: ArrayLike) -> list[list[float]]:
        return [point for point in _points(points) if not cut or _is_inside(point, edges)]

    drawn: list[ArrayLike] = []
    marks: list[Sequence[float]] = [text.xy if hasattr(text, "xy") else text.get_position() for text in axes.texts]
    bars: list[list[float]] = []
    for artist in seen(axes) if cut else axes.get_children():
        if artist is axes.patch or not artist.get_visible():
            continue
        if isinstance(artist, lines.Line2D):
            if artist.get_transform().contains_branch(axes.transData):
                drawn.append(_above_bars(artist, axes, artist.get_xydata(), cut=cut))
        elif isinstance(artist, collections.LineCollection):
            # A stroke is a mark at its middle.
            drawn += artist.get_segments()
            marks += [np.asarray(segment, dtype=float).mean(axis=0).tolist() for segment in artist.get_segments()]
        elif isinstance(artist, collections.Collection):
            if artist.get_offset_transform().contains_branch(axes.transData):
                offsets = np.ma.filled(artist.get_offsets(), np.nan)
                marks += _points(_above_bars(artist, axes, offsets, cut=cut))
        elif isinstance(artist, patches.Rectangle) and artist.get_transform().contains_branch(axes.transData):
            x, y, width, height = artist.get_x(), artist.get_y(), artist.get_width(), artist.get_height()
            sides = [min(x, x + width), max(x, x + width), min(y, y + height), max(y, y + height)]
            if cut:
                # A bar on a logarithmic axis may well begin at 0, which is nowhere.
                least_x = left if axes.get_xscale() == "linear" else -math.inf
                least_y = bottom if axes.get_yscale() == "linear" else -math.inf
                sides = [
                    *(min(max(side, least_x), right) for side in sides[:2]),
                    *(min(max(side, least_y), top) for side in sides[2:]),
                ]
            bars.append([float(side) for side in sides])
    shared = axes.get_shared_y_axes()
    return ShownAxes(
        lines=[inside(points) for points in drawn],
        marks=inside([tuple(mark) for mark in marks]),
        bars=bars,
        scales=[axes.get_xscale(), axes.get_yscale()],
        labels=[axes.get_xlabel(), axes.get_ylabel(), axes.get_title()],
        shares_y=any(other is not axes and shared.joined(axes, other) for other in all_axes),
    )


def _above_bars(artist: object, axes: Axes, points: ArrayLike, *, cut: bool) -> ArrayLike:
    """The points that no bar covers; not `cut`, all of them."""
    hidden = under_bars(artist, axes) if cut else np.zeros(0, bool)
    return np.asarray(points, dtype=float)[~hidden] if hidden.size else points


def _is_inside(point: Sequence[float], edges: tuple[float, float, float, float]) -> bool:
    """Whether a point is within the limits of its axes, to rounding."""
    (x, y), (left, right, bottom, top) = point, edges
    return bool(
        left - _EDGE * (right - left) <= x <= right + _EDGE * (right - left)
        and bottom - _EDGE * (top - bottom) <= y <= top + _EDGE * (top - bottom)
    )


def _points(points: ArrayLike) -> list[list[float]]:
    """Those that are finite, as lists."""
    rows = np.asarray(points, dtype=float).reshape(-1, 2)
    finite: list[list[float]] = rows[np.isfinite(rows).all(axis=1)].tolist()
    return finite


def refusals(student: Student, inputs: Refusals) -> RefusalsReply:
    """Call each function with arguments that make no sense, and with neighbours of theirs that do."""
    operands = [torch.zeros(1, 1, 3, 4, device=student.device) for _ in range(3)]
    tiny: dict[str, object] = {**on_device(student), "num_layers": 2, "width": 8, "heads": 2, "batch": 1, "length": 4}
    short: dict[str, object] = {**on_device(student), "batch": 1, "heads": 1, "head_dim": 4, "dtype": torch.float32}

    def called(module: str, name: str, *arguments: object, **named: object) -> Call:
        return lambda: getattr(student.module(module), name)(*arguments, **named)

    def model(layers: int, interval: int | None) -> Call:
        options = {} if interval == _DEFAULT_INTERVAL else {"checkpoint_every": interval}
        return called(_CHECKPOINTING, "CheckpointedTransformer", layers, **options)

    def measured(**named: int) -> Call:
        return called(_CHECKPOINTING, "measure_checkpointing", [None], **tiny, **named)

    def benchmark(methods: Sequence[str], **named: int) -> Call:
        return called(_ATTENTION, "benchmark_attention", [8], methods, **short, **named)

    def train(micro_batch: int) -> Call:
        network = torch.nn.Linear(4, 4).to(student.device)
        batches = [(torch.zeros(3, 4), torch.zeros(3, 4))]
        return called("lab4_memory.oom_fixes", "train_large_model", network, batches, batches, micro_batch=micro_batch)

    def retry(size: int) -> Call:
        return called("lab4_memory.oom_retry", "run_with_oom_retry", lambda micro_batch: micro_batch, size)

    def predict(setup: TrainingSetup) -> Call:
        return called("lab4_memory.memory_analysis", "predict_memory", setup)

    below, word, interval = inputs.below, inputs.word, inputs.interval
    calls: Calls = {
        "checkpointing": {
            **{f"CheckpointedTransformer({n})": model(n, 1) for n in (0, below)},
            **{f"CheckpointedTransformer(2, checkpoint_every={n})": model(2, n) for n in (0, below)},
            **{f"measure_checkpointing(steps={n})": measured(steps=n) for n in (0, below)},
            f"measure_checkpointing(warmup={below})": measured(warmup=below),
        },
        "attention": {
            **{
                f"tiled_attention(block_size={n})": called(_ATTENTION, "tiled_attention", *operands, block_size=n)
                for n in (0, below)
            },
            f"benchmark_attention(methods=[{word!r}])": benchmark([word]),
            **{f"benchmark_attention(iterations={n})": benchmark(["standard"], iterations=n) for n in (0, below)},
            **{f"benchmark_attention(warmup={n})": benchmark(["standard"], warmup=n) for n in (0, below)},
        },
        "oom": {
            **{f"train_large_model(micro_batch={n})": train(n) for n in (0, below)},
            **{f"run_with_oom_retry(attempt, {n})": retry(n) for n in (0, below)},
        },
        "analysis": {
            f"predict_memory() of an unknown model, {word!r}": predict(replace(_SETUP, model=word)),
            f"predict_memory() of an unknown optimizer, {word!r}": predict(replace(_SETUP, optimizer=word)),
            f"predict_memory() of an unknown dtype, {word!r}": predict(replace(_SETUP, dtype=word)),
            f"predict_memory() of an mlp with checkpoint_every={interval}": predict(
                replace(_SETUP, checkpoint_every=interval)
            ),
        },
    }
    sensible: Calls = {
        "checkpointing": {
            "CheckpointedTransformer(2)": model(2, _DEFAULT_INTERVAL),
            "CheckpointedTransformer(2, checkpoint_every=2)": model(2, 2),
            "measure_checkpointing(steps=1, warmup=0)": measured(steps=1, warmup=0),
        },
        "attention": {
            "tiled_attention(block_size=2)": called(_ATTENTION, "tiled_attention", *operands, block_size=2),
            "benchmark_attention(iterations=1, warmup=1)": benchmark(["standard"], iterations=1, warmup=1),
        },
        "oom": {
            "train_large_model(micro_batch=2)": train(2),
            "run_with_oom_retry(attempt, 2)": retry(2),
        },
        "analysis": {
            "predict_memory() of an mlp": predict(_SETUP),
            "predict_memory() of a transformer with checkpointing": predict(
                replace(_SETUP, model="transformer", heads=8, checkpoint_every=1)
            ),
        },
    }
    return RefusalsReply(calls=_errors(calls), sensible=_errors(sensible))


def _errors(calls: Calls) -> dict[str, dict[str, str | None]]:
    """The name of the error that each call raised, None if it raised none."""
    return {criterion: {what: _error(call) for what, call in rows.items()} for criterion, rows in calls.items()}


def _error(call: Call) -> str | None:
    """As `ending`; an open task has a name as well, since other tasks are called in the same request."""
    try:
        return ending(call) or None
    except NotImplementedError:
        return "NotImplementedError"
