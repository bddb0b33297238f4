"""`gpu.save_picture`: host launches above, device kernels below, memory and utilisation under them, with matplotlib.

matplotlib is imported when a picture is made, not before. Not here: what the panels show (`vgpu.runtime.views.panels`,
`vgpu.runtime.views.curves`), and which events belong to the window (`vgpu.runtime.views.history`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vgpu.runtime.unsupported import unsupported
from vgpu.runtime.views import curves, history, panels, thinning
from vgpu.runtime.views.history import History
from vgpu.runtime.views.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vgpu.runtime.gpu import VirtualGPU

SUFFIXES = (".png", ".svg", ".pdf")
MARK = "simulated by vgpu - modelled, not measured"

_WIDTH_INCHES = 12.0
_LEFT_INCHES, _RIGHT_INCHES, _TOP_INCHES, _BOTTOM_INCHES = 1.25, 1.95, 0.95, 0.5
_MEMORY_INCHES, _BUSY_INCHES, _GAP_INCHES = 1.45, 0.7, 0.3
# A legend needs this much room next to a panel, however few lanes that has.
_LEGEND_LINE_INCHES = 0.155
# Lines from launches to kernels help while they are distinguishable.
_MOST_ARROWS = 40
# Up to this many threads and streams have a lane of their own.
_MOST_LANES = 8


def require_matplotlib() -> None:
    """Raise Unsupported, with what to do, where matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise unsupported("a picture without matplotlib") from None


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path, when its suffix names a format; raises ValueError."""
    checked = Path(path)
    if checked.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{checked}: a picture ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return checked


def save(
    gpu: VirtualGPU,
    path: str | os.PathLike[str],
    *,
    start: float | None = None,
    stop: float | None = None,
    gpus: Sequence[int] | None = None,
) -> Path:
    """Draw what happened between `start` and `stop` (seconds since attach) to a .png, .svg or .pdf file."""
    checked = check_path(path)
    require_matplotlib()
    figure = draw(history.record(gpu, start=start, stop=stop, gpus=gpus))
    metadata = {".png": {"Software": f"vgpu, {MARK}"}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    figure.savefig(checked, dpi=150, metadata=metadata[checked.suffix.lower()])
    return checked


def draw(run: History) -> Figure:
    """The figure: the host once, then streams, memory and utilisation of each GPU."""
    from matplotlib.figure import Figure

    threads = list(run.threads)[:_MOST_LANES] or ["MainThread"]
    kinds = len({span.kind for spans in run.threads.values() for span in spans})
    host_inches = panels.host_rows(run, threads)[0]
    heights = [max(host_inches, _LEGEND_LINE_INCHES * (kinds + 1))]
    for device in run.devices:
        lanes = max(1, min(len(device.streams), _MOST_LANES)) * panels.LANE_INCHES
        kinds = len({history.kernel_kind(kernel) for kernel in device.kernels})
        heights += [max(lanes, _LEGEND_LINE_INCHES * (kinds + 1)), _MEMORY_INCHES, _BUSY_INCHES]
    total = _TOP_INCHES + _BOTTOM_INCHES + sum(heights) + _GAP_INCHES * (len(heights) - 1)
    figure = Figure(figsize=(_WIDTH_INCHES, total))
    axes: list[Axes] = []
    y = total - _TOP_INCHES
    width = _WIDTH_INCHES - _LEFT_INCHES - _RIGHT_INCHES
    for height in heights:
        box = (_LEFT_INCHES / _WIDTH_INCHES, (y - height) / total, width / _WIDTH_INCHES, height / total)
        axes.append(figure.add_axes(box))
        y -= height + _GAP_INCHES
    scale, unit = thinning.time_unit(run.stop - run.start)
    panels.host(axes[0], run, threads, scale)
    for number, device in enumerate(run.devices):
        streams, memory, busy = axes[1 + 3 * number : 4 + 3 * number]
        panels.streams(streams, run, device, scale, _MOST_LANES)
        curves.memory(memory, run, device, scale)
        curves.busy(busy, run, device, scale)
        if len(run.devices) > 1:
            streams.set_title(f"cuda:{device.index}  {device.title}", loc="left", fontsize=8, fontweight="bold", pad=3)
    _finish(axes, run, scale, unit)
    if len(run.devices) == 1:
        _arrows(figure, axes[0], axes[1], run, threads, scale)
    _title(figure, run, total)
    return figure


def _finish(axes: Sequence[Axes], run: History, scale: float, unit: str) -> None:
    for axis in axes:
        axis.set_xlim(0, (run.stop - run.start) / scale)
        axis.tick_params(labelsize=8, labelbottom=axis is axes[-1])
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes:
        if axis.get_ylabel() == "":  # lanes
            axis.spines["left"].set_visible(False)
            axis.tick_params(axis="y", length=0)
    since = f"from {run.start:.6g} s after attach" if run.start > 0 else "since attach"
    axes[-1].set_xlabel(f"virtual time {since} ({unit})", fontsize=9)


def _arrows(figure: Figure, host: Axes, streams: Axes, run: History, threads: Sequence[str], scale: float) -> None:
    """Thin lines from the end of a launch to the start of its kernel: their slope is launch latency and queueing."""
    from matplotlib.patches import ConnectionPatch

    lanes = list(run.devices[0].streams.items())[:_MOST_LANES]
    kernels = [(lane, kernel) for lane, (_, stream) in enumerate(lanes) for kernel in stream]
    if len(kernels) > _MOST_ARROWS:
        return
    rows = panels.host_rows(run, threads)[1]
    for lane, kernel in kernels:
        launched = kernel.launched_at + kernel.host_seconds
        if kernel.thread not in rows or launched < run.start or kernel.start > run.stop:
            continue
        begin = ((min(launched, kernel.start) - run.start) / scale, rows[kernel.thread][0] + 0.37 * panels.LANE_INCHES)
        end = ((kernel.start - run.start) / scale, lane + 0.13)
        arrow = ConnectionPatch(
            begin, end, coordsA=host.transData, coordsB=streams.transData, color="#555555", linewidth=0.6,
            arrowstyle="-|>", mutation_scale=5, alpha=0.7,
        )  # fmt: skip
        figure.add_artist(arrow)


def _title(figure: Figure, run: History, total: float) -> None:
    names = list(dict.fromkeys(device.title for device in run.devices))
    count = f"{len(run.devices)} GPUs: " if len(run.devices) > 1 else ""
    x = _LEFT_INCHES / _WIDTH_INCHES
    figure.text(x, 1 - 0.26 / total, f"{count}{' and '.join(names)}", fontsize=13, fontweight="bold", va="center")
    figure.text(
        1 - 0.12 / _WIDTH_INCHES, 1 - 0.26 / total, MARK, fontsize=9, va="center", ha="right", color="#B04A00",
        fontweight="bold",
    )  # fmt: skip
    figure.text(x, 1 - 0.50 / total, _facts(run), fontsize=8.5, va="center", color=INK)
    if run.left_out:
        figure.text(x, 1 - 0.69 / total, run.left_out, fontsize=8, va="center", color="#666666", style="italic")


def _facts(run: History) -> str:
    """What the picture shows, in one line."""
    span = run.stop - run.start
    facts = [f"{thinning.seconds_text(span)} shown"]
    kernels = [kernel for device in run.devices for kernel in device.kernels]
    facts.append(f"{len(kernels)} kernel{'s' if len(kernels) != 1 else ''} and copies")
    spans = next(iter(run.threads.values()), [])
    for kind, words in (("launch", "launching"), ("wait", "waiting")):
        share = sum(min(part.end, run.stop) - max(part.start, run.start) for part in spans if part.kind == kind) / span
        if share >= 0.005:
            facts.append(f"host {words} {100 * share:.0f} %")
    if len(run.devices) == 1:
        shares = history.busy_shares(kernels, run.start, run.stop, 100)
        facts.append(f"device busy {sum(shares):.0f} %")
    return "   ·   ".join(facts)
