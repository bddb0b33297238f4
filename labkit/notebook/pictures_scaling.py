"""Pictures for Lab 3: exchange next to backward, what a step on several GPUs consists of, how equal results are.

Not for what students plot themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.notebook.pictures import COLORS, INK, new_figure
from labkit.notebook.rank_demos import Span

BLUE, ORANGE, GREEN, PINK, VIOLET, GREY = COLORS
KINDS = {"forward": BLUE, "backward": GREEN, "other": GREEN, "exchange": ORANGE}
PARTS = {"compute": GREEN, "data": BLUE, "imbalance": GREY, "communication": ORANGE}
"""What a step consists of, from the bottom of the bar upwards, each with its colour."""


def draw_overlap(steps: Mapping[str, Sequence[Span]], title: str, *, kinds: Mapping[str, str]) -> Figure:
    """One GPU's step per row: computation above, exchange of gradients below, in milliseconds.

    Args:
        steps: by name what the GPU did.
        title: the message.
        kinds: of spans, with what they are called in the legend.
    """
    figure, (axis,) = new_figure(title, x_label="time on the GPU, ms (simulated)", height=0.75 * len(steps) + 1.4)
    for row, spans in enumerate(steps.values()):
        for span in spans:
            below = span.kind == "exchange"
            box = (span.start * 1e3, span.seconds * 1e3)
            place = (row + 0.03, 0.33) if below else (row - 0.36, 0.36)
            axis.broken_barh([box], place, facecolor=KINDS[span.kind], edgecolor="none", linewidth=0)
            if below and span.seconds > 0:  # where one exchange ends and the next begins
                axis.plot([box[0]] * 2, [place[0], place[0] + place[1]], color=INK, linewidth=0.7)
        end = max(span.start + span.seconds for span in spans) * 1e3
        axis.annotate(
            f"{end:.1f} ms", (end, row + 0.2), (4, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK
        )
    axis.set_yticks(range(len(steps)), list(steps))
    axis.invert_yaxis()
    axis.set_xlim(0, axis.get_xlim()[1] * 1.08)
    axis.grid(visible=False, axis="y")
    handles = [Patch(color=KINDS[kind], label=label) for kind, label in kinds.items()]
    axis.legend(handles=handles, fontsize=8.5, ncols=len(handles), loc="lower left", bbox_to_anchor=(0, 1.0))
    return figure


def draw_drift(losses: Mapping[str, Sequence[float]], distances: Mapping[str, Sequence[float]]) -> Figure:
    """Loss of rank 0, and how far the replicas are from each other, over the steps."""
    figure, axes = new_figure(
        "The loss does not show it: replicas that drift apart", columns=2, x_label="step", height=3.0
    )
    for axis, label, values in (
        (axes[0], "loss of rank 0", losses),
        (axes[1], "distance between the replicas", distances),
    ):
        for (name, series), color, style in zip(values.items(), (ORANGE, BLUE), ("-", "--"), strict=False):
            axis.plot(range(len(series)), series, style, color=color, linewidth=2, label=name)
        axis.set_ylabel(label, fontsize=9, color=INK)
        axis.set_ylim(bottom=-0.02 * axis.get_ylim()[1])
    axes[0].legend(fontsize=8.5)
    return figure


def draw_parts(bars: Mapping[str, Sequence[tuple[str, Mapping[str, float]]]], title: str) -> Figure:
    """Stacked milliseconds of a step, one panel per kind of scaling, one bar per number of GPUs.

    Args:
        bars: by panel, pairs (label of the bar, seconds by part).
        title: the message.
    """
    figure, axes = new_figure(
        title, columns=len(bars), x_label="GPUs", y_label="one step, ms", height=3.3, share_y=True
    )
    used = {part for groups in bars.values() for _, parts in groups for part, seconds in parts.items() if seconds > 0}
    for axis, (panel, groups) in zip(axes, bars.items(), strict=True):
        axis.set_title(panel, fontsize=9.5, color=INK)
        axis.set_xlabel("GPUs", fontsize=9, color=INK)
        axis.grid(visible=False, axis="x")
        for x, (_, parts) in enumerate(groups):
            bottom = 0.0
            for part, color in PARTS.items():
                height = parts.get(part, 0.0) * 1e3
                axis.bar(x, height, bottom=bottom, width=0.6, color=color)
                bottom += height
        axis.set_xticks(range(len(groups)), [label for label, _ in groups])
    handles = [Patch(color=color, label=part) for part, color in PARTS.items() if part in used]
    axes[-1].legend(handles=handles[::-1], fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def draw_ranks(profile: Any, split: Mapping[str, float] | None = None) -> Figure:
    """One step of several ranks, one row each, as a clock in each rank sees it; `split` is drawn as a row below."""
    ranks = len(profile.data_seconds)
    rows = ranks + (split is not None)
    figure, (axis,) = new_figure(
        "Waiting for the slow one looks like communication", x_label="time in the step, ms", height=0.42 * rows + 1.5
    )
    for rank in range(ranks):
        start = 0.0
        for part in ("data", "compute", "communication"):
            width = getattr(profile, f"{part}_seconds")[rank] * 1e3
            axis.barh(rank, width, left=start, height=0.55, color=PARTS[part])
            start += width
    names = [f"rank {rank}" for rank in range(ranks)]
    if split is not None:
        start = 0.0
        for part in ("data", "compute", "imbalance", "communication"):
            seconds = split[part]
            axis.barh(ranks + 0.25, seconds * 1e3, left=start, height=0.55, color=PARTS[part])
            start += seconds * 1e3
        names.append("split_step")
    axis.set_yticks([*range(ranks), *([ranks + 0.25] if split is not None else [])], names)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    shown = ("data", "compute", "communication") if split is None else ("data", "compute", "imbalance", "communication")
    handles = [Patch(color=PARTS[part], label=part) for part in shown]
    axis.legend(handles=handles, fontsize=8.5, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0))
    return figure


def draw_efficiency(ratios: Mapping[str, Mapping[int, float]], shares: Mapping[str, Mapping[int, float]]) -> Figure:
    """Scaling efficiency and share of communication over the number of GPUs, one line per kind of scaling."""
    figure, axes = new_figure(
        "The exchange costs what efficiency lacks", columns=2, x_label="GPUs", height=3.1, share_y=True
    )
    for axis, label, values in ((axes[0], "efficiency", ratios), (axes[1], "share of communication", shares)):
        axis.set_title(label, fontsize=9.5, color=INK)
        for (kind, points), color, style in zip(values.items(), (ORANGE, BLUE), ("o-", "s--"), strict=False):
            axis.plot(list(points), [100 * ratio for ratio in points.values()], style, color=color, label=kind)
            axis.set_xticks(list(points))
        axis.set_xlabel("GPUs", fontsize=9, color=INK)
    axes[0].set_ylabel("percent", fontsize=9, color=INK)
    axes[0].set_ylim(0, 108)
    axes[0].legend(fontsize=8.5)
    return figure


def draw_links(sizes: Sequence[float], seconds: Mapping[str, Sequence[float]]) -> Figure:
    """Time of an all-reduce over the bytes of gradients, one line per interconnect."""
    figure, (axis,) = new_figure(
        "An all-reduce of few bytes costs latency, of many bytes bandwidth",
        x_label="gradients, bytes",
        y_label="all-reduce of 4 GPUs, s",
        height=3.1,
    )
    for (name, series), color in zip(seconds.items(), COLORS, strict=False):
        axis.loglog(sizes, series, color=color, linewidth=2, label=name)
    axis.legend(fontsize=8.5)
    return figure


def draw_differences(differences: Mapping[str, float], title: str, *, allowed: float = 1e-6) -> Figure:
    """How far weights are from those of one large batch, on a logarithmic axis, and how far they may be."""
    figure, (axis,) = new_figure(
        title, x_label="largest difference between weights / largest weight", height=0.42 * len(differences) + 1.5
    )
    floor = 1e-18
    for row, value in enumerate(differences.values()):
        color = GREEN if value <= allowed else ORANGE
        end = max(value, 2 * floor)
        axis.barh(row, end - floor, left=floor, height=0.55, color=color)
        axis.text(end * 1.6, row, "0" if value == 0 else f"{value:.1g}", va="center", fontsize=8.5, color=INK)
    axis.vlines(allowed, -0.55, len(differences) - 0.5, color=INK, linestyle="--", linewidth=1)
    axis.text(allowed, -0.62, "allowed: 1e-6", fontsize=8.5, ha="center", va="bottom", color=INK)
    axis.set_xscale("log")
    axis.set_xlim(floor, 10)
    axis.set_yticks(range(len(differences)), list(differences))
    axis.set_ylim(len(differences) - 0.5, -1.0)
    axis.grid(visible=False, axis="y")
    return figure


def draw_runs(losses: Mapping[str, tuple[int, Sequence[float]]], title: str) -> Figure:
    """Mean loss over the epochs; each run begins at its own epoch; lines are told apart by more than colour.

    Args:
        losses: by name the first epoch and the loss of each.
        title: the message.
    """
    figure, (axis,) = new_figure(title, x_label="epoch", y_label="mean loss", height=3.1)
    looks = zip(COLORS, ("o-", "s--", "^:", "-."), (6.0, 3.0, 1.5, 1.5), strict=False)
    for (name, (first, series)), (color, style, width) in zip(losses.items(), looks, strict=False):
        axis.plot(
            range(first, first + len(series)), series, style, color=color, linewidth=width, label=name, markersize=6
        )
    last = max(first + len(series) for first, series in losses.values())
    axis.set_xticks(range(1, last))
    axis.legend(fontsize=8.5)
    _from_zero(axis)
    return figure


def _from_zero(axis: Axes) -> None:
    high = axis.get_ylim()[1]
    axis.set_ylim(0, high if math.isfinite(high) else 1.0)
