"""Pictures of the chapter and of Lab 1: host and device side by side, times over sizes, memory over moments.

Timelines are taken from a virtual GPU, also where there is a real one: it knows what both sides did at every moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from labkit.notebook.pictures import COLORS, INK, new_figure

BLUE, ORANGE, GREEN, PINK, VIOLET, GREY = COLORS
MEBIBYTE = 2**20
_MEANING = {"launch": BLUE, "wait": ORANGE, "kernel": GREEN, "copy": VIOLET}


@dataclass(frozen=True)
class Span:
    """What one side did from `start` to `end` (seconds since the work began)."""

    lane: str
    """ "host" or "device"."""
    kind: str
    """ "launch", "wait", "kernel" or "copy"."""
    start: float
    end: float


def record_timeline(make: Callable[[], Callable[[], object]], *, model: str = "T4") -> list[Span]:
    """Run some work on a virtual GPU of its own, and note what host and device did.

    Args:
        make: prepares (tensors, warm-up) and returns the work.
        model: of the virtual GPU, which computes no numbers.
    """
    import torch

    import vgpu

    with vgpu.attach(model, values=False, force=True) as gpu:
        work = make()
        torch.cuda.synchronize()
        begin, kernels, spans = gpu.now(), len(gpu.timeline), len(gpu.clock.spans)
        work()
        torch.cuda.synchronize()
        timeline = [
            Span("host", "launch", k.launched_at - k.host_seconds, k.launched_at) for k in gpu.timeline[kernels:]
        ]
        kinds = {True: "copy", False: "kernel"}
        timeline += [Span("device", kinds["Memcpy" in k.name], k.start, k.end) for k in gpu.timeline[kernels:]]
        waits = [span for span in gpu.clock.spans[spans:] if span.kind == "wait"]
        timeline += [Span("host", "wait", span.start, span.end) for span in waits]
    return [Span(span.lane, span.kind, span.start - begin, span.end - begin) for span in timeline]


def draw_timelines(
    timelines: Mapping[str, Sequence[Span]], title: str, *, marks: Mapping[str, float] | None = None
) -> Figure:
    """Host above, device below, one pair of lanes per timeline, on one scale.

    Args:
        timelines: by the name of the program.
        title: the message.
        marks: by the name of a program, the moment (seconds) at which it believes that it is done.
    """
    figure, axes = new_figure(
        title, rows=len(timelines), x_label="time, ms", height=0.6 + 1.15 * len(timelines), share_x=True
    )
    for axis, (name, spans) in zip(axes, timelines.items(), strict=True):
        for span in spans:
            y = 1.0 if span.lane == "host" else 0.0
            bar = [(span.start * 1e3, max(span.end - span.start, 0) * 1e3)]
            # A hair between two bars, so that they can be counted.
            axis.broken_barh(bar, (y - 0.32, 0.64), facecolor=_MEANING[span.kind], edgecolor="white", linewidth=0.15)
        axis.set_yticks([0, 1], ["device", "host"])
        axis.set_ylim(-0.6, 1.6)
        axis.grid(visible=False, axis="y")
        axis.set_title(name, fontsize=9.5, loc="left")
        if marks and name in marks:
            axis.axvline(marks[name] * 1e3, color=PINK, linewidth=1.6)
    kinds = [kind for kind in _MEANING if any(span.kind == kind for spans in timelines.values() for span in spans)]
    handles: list[Any] = [axes[0].barh([-9], [0], color=_MEANING[kind], label=kind) for kind in kinds]
    if marks:
        handles += axes[0].plot([], [], color=PINK, label="clock read")
    axes[0].legend(handles=handles, loc="lower right", ncols=5, fontsize=8.5, bbox_to_anchor=(1.0, 1.0), borderpad=0.1)
    return figure


def plot_over_size(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    *,
    x_label: str,
    y_label: str,
    line_at: float | None = None,
    ticks: Mapping[float, str] | None = None,
) -> Figure:
    """Curves on two logarithmic axes: points (x, y) by label; `line_at` draws a level, `ticks` name places."""
    figure, (axis,) = new_figure(title, x_label=x_label, y_label=y_label)
    for color, (label, points) in zip(COLORS, curves.items(), strict=False):
        axis.plot([x for x, _ in points], [y for _, y in points], "o-", color=color, label=label, markersize=4)
    axis.set(xscale="log", yscale="log")
    if ticks:
        axis.set_xticks(list(ticks), list(ticks.values()))
        axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if line_at is not None:
        axis.axhline(line_at, color=INK, linewidth=1, linestyle="--")
    if len(curves) > 1:
        axis.legend(fontsize=8.5)
    return figure


def plot_moments(moments: Sequence[tuple[str, int, int, int]], title: str) -> Figure:
    """Allocated, reserved and peak bytes at some moments; each moment is (name, allocated, reserved, peak)."""
    figure, (axis,) = new_figure(title, y_label="memory, MiB")
    names = [f"{index}. {name}" for index, (name, *_) in enumerate(moments, start=1)]
    allocated = [moment[1] / MEBIBYTE for moment in moments]
    reserved = [moment[2] / MEBIBYTE for moment in moments]
    peak = [moment[3] / MEBIBYTE for moment in moments]
    axis.bar(names, peak, color=BLUE, alpha=0.35, label="peak")
    axis.bar(names, allocated, width=0.5, color=BLUE, label="allocated")
    places = range(len(names))
    axis.hlines(reserved, [x - 0.45 for x in places], [x + 0.45 for x in places], color=ORANGE, label="reserved")
    axis.tick_params(axis="x", rotation=20)
    axis.legend(fontsize=8.5, ncols=3, loc="upper left")
    axis.set_ylim(0, max(reserved + peak) * 1.25 or 1)
    return figure


def plot_bars(values: Mapping[str, float], title: str, *, x_label: str, form: str = "{:.3g}") -> Figure:
    """Horizontal bars with their values, in the order given."""
    figure, (axis,) = new_figure(title, x_label=x_label, height=0.9 + 0.36 * len(values))
    names = list(values)
    axis.barh(names, list(values.values()), color=BLUE, height=0.62)
    for place, value in enumerate(values.values()):
        text = axis.annotate(form.format(value), (value, place), (4, 0), textcoords="offset points", va="center")
        text.set(fontsize=8.5, color=INK)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set_xlim(0, max(values.values()) * 1.12 or 1)
    return figure
