"""Pictures of the notebooks about single laws: launches and fused kernels, layouts of images, rings and switches.

Not for what students plot themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from labkit.notebook.pictures import COLORS, INK, new_figure

BLUE, ORANGE, GREEN, PINK, VIOLET, GREY = COLORS
MEBIBYTE = 2**20
Points = Sequence[tuple[float, float]]


def draw_launch_bound(calls: Mapping[str, Points], kernels: Mapping[str, Points]) -> Figure:
    """Milliseconds of a call over the batch, a solid line for each card, and what its kernels take, dashed.

    Args:
        calls: by card, points (batch, seconds of a call).
        kernels: by the same cards, points (batch, seconds of its kernels alone).
    """
    figure, (axis,) = new_figure(
        "As long as the kernels are shorter than their launches, the batch costs nothing",
        x_label="batch",
        y_label="one call, ms",
        height=3.4,
    )
    for color, (card, points) in zip(COLORS, calls.items(), strict=False):
        axis.loglog(*zip(*points, strict=True), "o-", color=color, label=card, markersize=4)
        axis.loglog(*zip(*kernels[card], strict=True), "s--", color=color, label=f"{card}, kernels alone", markersize=3)
    batches = [batch for batch, _ in next(iter(calls.values()))]
    axis.set_xticks(batches, [f"{batch:g}" for batch in batches])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.legend(fontsize=8.5, ncols=2)
    return figure


def draw_kernels(programs: Mapping[str, Sequence[tuple[str, float]]], title: str) -> Figure:
    """Kernels of each program one after the other, as long as the bytes that they move.

    Args:
        programs: by name, pairs (kernel, bytes) in the order of their launches.
        title: the message.
    """
    figure, (axis,) = new_figure(
        title, x_label="MiB moved, one kernel after the other", height=0.75 * len(programs) + 1
    )
    for row, kernels in enumerate(programs.values()):
        left = 0.0
        for index, (name, moved) in enumerate(kernels):
            width = moved / MEBIBYTE
            axis.barh(row, width, left=left, height=0.6, color=(BLUE, VIOLET)[index % 2])
            axis.text(left + width / 2, row, name, ha="center", va="center", fontsize=8, color="white")
            left += width
        label = axis.annotate(f"{len(kernels)} launched", (left, row), (5, 0), textcoords="offset points", va="center")
        label.set(fontsize=8.5, color=INK)
    axis.set_yticks(range(len(programs)), list(programs))
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set_xlim(0, axis.get_xlim()[1] * 1.12)
    return figure


def draw_layout_gain(gains: Mapping[str, Points]) -> Figure:
    """How many times faster a convolution is with channels last, over its channels; one line per precision."""
    figure, (axis,) = new_figure(
        "The fewer the products, the more the transpositions weigh",
        x_label="channels in and out",
        y_label="times faster with channels last",
        height=3.2,
    )
    for color, style, (name, points) in zip(COLORS, ("o-", "s--", "^:"), gains.items(), strict=False):
        axis.plot(*zip(*points, strict=True), style, color=color, label=name, markersize=5)
    axis.axhline(1.0, color=INK, linewidth=0.8)
    axis.set_xscale("log", base=2)
    channels = [count for count, _ in next(iter(gains.values()))]
    axis.set_xticks(channels, [f"{count:g}" for count in channels])
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8.5)
    return figure


def draw_ring(holds: Sequence[Sequence[Sequence[int]]]) -> Figure:
    """How many ranks' numbers each part of each rank's buffer has in it, before the first step and after each.

    Args:
        holds: by step, by rank, by part: a count from 1 to the number of ranks.
    """
    ranks = len(holds[0])
    figure, axes = new_figure(
        f"{ranks} ranks in a ring: {ranks - 1} steps to add, {ranks - 1} to pass on",
        columns=len(holds),
        height=2.3,
        share_y=True,
    )
    for step, (axis, by_rank) in enumerate(zip(axes, holds, strict=True)):
        for rank, parts in enumerate(by_rank):
            for part, count in enumerate(parts):
                alpha = 0.15 + 0.85 * (count - 1) / max(ranks - 1, 1)
                axis.barh(
                    rank, 0.94, left=part + 0.03, height=0.9, color=GREEN if count == ranks else BLUE, alpha=alpha
                )
                axis.text(part + 0.5, rank, str(count), ha="center", va="center", fontsize=8.5, color=INK)
        axis.set_title("before" if step == 0 else f"step {step}", fontsize=9, color=INK)
        axis.set_xticks([part + 0.5 for part in range(ranks)], [str(part) for part in range(ranks)])
        axis.set_xlabel("part", fontsize=8.5, color=INK)
        axis.grid(visible=False)
        axis.spines[["left", "bottom"]].set_visible(False)
    axes[0].set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes[0].invert_yaxis()
    return figure


def draw_all_reduces(seconds: Mapping[str, Points], gain: Points) -> Figure:
    """Microseconds of an all-reduce over its bytes, a line for each way; and how many times faster the second is."""
    figure, axes = new_figure(
        "A switch that adds: few steps for small messages, fewer bytes for large ones",
        columns=2,
        x_label="bytes of each rank",
        height=3.2,
    )
    for color, style, (name, points) in zip(COLORS, ("o-", "s--", "^:"), seconds.items(), strict=False):
        axes[0].plot([size for size, _ in points], [value * 1e6 for _, value in points], style, color=color, label=name)
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[0].set_ylabel("all-reduce, microseconds", fontsize=9, color=INK)
    axes[0].legend(fontsize=8.5)
    axes[1].plot(*zip(*gain, strict=True), "o-", color=PINK)
    axes[1].set_ylim(bottom=0)
    axes[1].set_ylabel("ring's time / switch's time", fontsize=9, color=INK)
    axes[1].set_xlabel("bytes of each rank", fontsize=9, color=INK)
    for axis in axes:
        axis.set_xscale("log", base=2)
        ticks = [size for size, _ in gain][::5]
        axis.set_xticks(ticks, [_bytes(size) for size in ticks])
    return figure


def _bytes(count: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count:g} B"
