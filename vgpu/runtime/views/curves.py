"""The curves of a picture: memory by category, and how busy the device was.

Not here: lanes of events (`vgpu.runtime.views.panels`), and the layout of the figure (`vgpu.runtime.views.picture`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpu.runtime.views import thinning
from vgpu.runtime.views.history import CATEGORIES, DeviceHistory, History, busy_shares
from vgpu.runtime.views.palette import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED, SKY, legend, side_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEMORY = {
    "parameters": BLUE, "gradients": ORANGE, "optimizer_state": GREEN, "activations": SKY, "workspaces": PINK,
    "other": GREY, "allocated": SKY,
}  # fmt: skip
_BUSY_SLOTS = 80


def memory(axis: Axes, run: History, device: DeviceHistory, scale: float) -> None:
    """Allocated bytes, stacked by category where that is known, reserved bytes above, and the peak."""
    samples: list[tuple[float, tuple[float, ...]]]
    if device.categories:
        known = dict.fromkeys(name for _, split in device.categories for name, size in split.items() if size)
        names = [name for name in CATEGORIES if name in known] + [name for name in known if name not in CATEGORIES]
        samples = [(moment, tuple(float(split.get(name, 0)) for name in names)) for moment, split in device.categories]
    else:
        names = ["allocated"]
        samples = [(sample.seconds, (float(sample.allocated_bytes),)) for sample in device.memory]
    reserved = [(sample.seconds, (float(sample.reserved_bytes),)) for sample in device.memory]
    top = max([values[0] for _, values in reserved] + [sum(values) for _, values in samples] + [1.0])
    unit, unit_name = thinning.bytes_unit(top)
    colours: dict[str, str] = {}
    if samples and names:
        times, columns = _steps(thinning.highest(samples, run.start, run.stop), run, scale)
        heights = [[value / unit for value in column] for column in columns]
        below = [0.0] * len(times)
        for name, column in zip(names, heights, strict=True):
            above = [low + high for low, high in zip(below, column, strict=True)]
            colours[name.replace("_", " ")] = MEMORY.get(name, GREY)
            axis.fill_between(times, below, above, step="post", color=MEMORY.get(name, GREY), linewidth=0.3)
            below = above
        _peak(axis, samples, run, scale, unit, top)
    if reserved:
        times, (column,) = _steps(thinning.highest(reserved, run.start, run.stop), run, scale)
        heights_reserved = [value / unit for value in column]
        axis.step(times, heights_reserved, where="post", color=INK, linewidth=1.0, linestyle=(0, (3, 1.5)))
        colours["reserved"] = INK
    axis.set_ylim(0, 1.25 * top / unit)
    side_label(axis, f"memory ({unit_name})")
    axis.grid(axis="y", color="#EEEEEE", linewidth=0.6, zorder=0)
    axis.set_axisbelow(True)
    legend(axis, dict(reversed(colours.items())), "memory (at launch)", lines={"reserved"})


def _peak(
    axis: Axes, samples: Sequence[tuple[float, tuple[float, ...]]], run: History, scale: float, unit: int, top: float
) -> None:
    moment, values = max(samples, key=lambda sample: sum(sample[1]))
    size = sum(values)
    if size <= 0:
        return
    x = (max(moment, run.start) - run.start) / scale
    left = x < 0.6 * (run.stop - run.start) / scale
    # What is allocated and freed between two launches takes no time, and would not show.
    axis.plot([x, x], [0, size / unit], color=RED, linewidth=0.7, alpha=0.6)
    axis.plot([x], [size / unit], marker="v", color=RED, markersize=5, clip_on=False, zorder=5)
    axis.annotate(
        f"peak {thinning.bytes_text(size)}", (x, size / unit), xytext=(6 if left else -6, 6),
        textcoords="offset points", ha="left" if left else "right", va="bottom", fontsize=8, color=RED, zorder=6,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
    )  # fmt: skip


def busy(axis: Axes, run: History, device: DeviceHistory, scale: float) -> None:
    """Share of the time in which the device ran anything, per slot, and over the window."""
    shares = busy_shares(device.kernels, run.start, run.stop, _BUSY_SLOTS)
    width = (run.stop - run.start) / scale / _BUSY_SLOTS
    edges = [number * width for number in range(_BUSY_SLOTS + 1)]
    axis.stairs([100 * share for share in shares], edges, fill=True, color=BLUE, alpha=0.35)
    mean = 100 * sum(shares) / len(shares)
    axis.axhline(mean, color=BLUE, linewidth=1.2)
    axis.set_ylim(0, 109)
    axis.set_yticks([0, 50, 100])
    side_label(axis, "busy (%)")
    legend(axis, {f"mean {mean:.0f} %": BLUE}, "utilisation", lines={f"mean {mean:.0f} %"})


def _steps(
    samples: Sequence[tuple[float, tuple[float, ...]]], run: History, scale: float
) -> tuple[list[float], list[list[float]]]:
    """Times within the window and one column per value, for a curve of steps that reaches the window's end."""
    times = [(max(moment, run.start) - run.start) / scale for moment, _ in samples]
    columns = [list(column) for column in zip(*(values for _, values in samples), strict=True)]
    times.append((run.stop - run.start) / scale)
    for column in columns:
        column.append(column[-1])
    return times, columns
