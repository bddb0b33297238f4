"""Timelines of one run on several cards above each other, on one scale of time. With matplotlib, imported when needed.

Not here: the lanes themselves (`vgpu.runtime.views.panels`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vgpu.device.recording.replay import Replay
from vgpu.runtime.views import panels, thinning
from vgpu.runtime.views.history import DeviceHistory, History
from vgpu.runtime.views.palette import INK
from vgpu.runtime.views.picture import MARK, check_path, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vgpu.device.host_span import HostSpan
    from vgpu.device.queue import Kernel

_WIDTH_INCHES, _LEFT_INCHES, _RIGHT_INCHES = 12.0, 1.25, 1.95
_LANE_INCHES, _GAP_INCHES, _HEAD_INCHES, _FOOT_INCHES = 0.95, 0.2, 0.45, 0.55
_MOST_STREAMS = 4


def save(runs: Sequence[Replay], path: str | os.PathLike[str], *, title: str) -> Path:
    """Draw one replay for each card, from its first kernel on, to a .png, .svg or .pdf file.

    Raises ValueError for another suffix, Unsupported where matplotlib is not installed.
    """
    checked = check_path(path)
    require_matplotlib()
    from matplotlib.figure import Figure

    histories = [_history(run) for run in runs]
    longest = max(run.seconds - history.start for run, history in zip(runs, histories, strict=True))
    each = _HEAD_INCHES + 2 * _LANE_INCHES + _GAP_INCHES
    total = 0.5 + each * len(runs) + _FOOT_INCHES
    figure = Figure(figsize=(_WIDTH_INCHES, total))
    width = (_WIDTH_INCHES - _LEFT_INCHES - _RIGHT_INCHES) / _WIDTH_INCHES
    scale, unit = thinning.time_unit(longest)
    y = total - 0.5
    axis: Axes | None = None
    for run, history in zip(runs, histories, strict=True):
        y -= _HEAD_INCHES
        took = thinning.seconds_text(run.seconds - history.start)
        text = f"{run.spec.title}: {took}, GPU busy {run.busy_ratio:.0%}"
        figure.text(_LEFT_INCHES / _WIDTH_INCHES, (y + 0.1) / total, text, fontsize=9.5, fontweight="bold", color=INK)
        shown = History(history.start, history.start + longest, history.devices, history.threads, {})
        for draw in (_draw_host, _draw_device):
            y -= _LANE_INCHES
            box = (_LEFT_INCHES / _WIDTH_INCHES, y / total, width, (_LANE_INCHES - 0.08) / total)
            axis = figure.add_axes(box)
            draw(axis, shown, scale)
            axis.set_xlim(0, longest / scale)
            axis.tick_params(labelsize=8, labelbottom=False)
            axis.tick_params(axis="y", length=0)
            axis.spines[["top", "right", "left"]].set_visible(False)
            if draw is _draw_host:
                axis.spines["bottom"].set_visible(False)
                axis.tick_params(axis="x", length=0)
        y -= _GAP_INCHES
    if axis is not None:
        axis.tick_params(labelbottom=True)
        axis.set_xlabel(f"virtual time since the first kernel ({unit})", fontsize=9)
    figure.text(_LEFT_INCHES / _WIDTH_INCHES, 1 - 0.26 / total, title, fontsize=12, fontweight="bold", va="center")
    figure.text(
        1 - 0.12 / _WIDTH_INCHES, 1 - 0.26 / total, MARK, fontsize=9, va="center", ha="right", color="#B04A00",
        fontweight="bold",
    )  # fmt: skip
    figure.savefig(checked, dpi=150)
    return checked


def _draw_host(axis: Axes, history: History, scale: float) -> None:
    panels.host(axis, history, list(history.threads)[:2], scale)


def _draw_device(axis: Axes, history: History, scale: float) -> None:
    panels.streams(axis, history, history.devices[0], scale, _MOST_STREAMS)


def _history(run: Replay) -> History:
    """The busiest GPU of a process, and its busiest threads."""
    queue = max(run.queues, key=lambda each: each.busy_seconds)
    index = run.queues.index(queue)
    streams: dict[int, list[Kernel]] = {}
    for kernel in queue.timeline:
        streams.setdefault(kernel.stream, []).append(kernel)
    threads: dict[str, list[HostSpan]] = {}
    for span in run.spans:
        threads.setdefault(span.thread, []).append(span)
    named = {("main thread" if name == "0" else f"thread {name}"): spans for name, spans in threads.items()}
    start = min((kernel.start for kernel in queue.timeline), default=0.0)
    device = DeviceHistory(index, run.spec.title, run.spec.name, dict(sorted(streams.items())), (), ())
    return History(start, run.seconds, [device], named, {})
