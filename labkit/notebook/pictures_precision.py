"""Pictures for Lab 2: what a number format can hold, where gradients lie, and what a loss scale does over the steps.

Not for what students plot themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from labkit.notebook.pictures import COLORS, INK, new_figure

BLUE, ORANGE, GREEN, PINK, VIOLET, GREY = COLORS
FORMATS = {"float32": BLUE, "bfloat16": GREEN, "float16": ORANGE}
"""Colour of each format, in the order of the pictures."""
_FINEST = 24
_LOWEST_SCALE = -6
"""The exponent below which a picture of scales ends: what comes down for ever goes out of it."""
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def significant_bits(dtype: torch.dtype, exponents: Sequence[int]) -> list[int]:
    """How many bits of a number near 2^exponent a format keeps, found by trying.

    Args:
        dtype: a floating-point format of at most 32 bits.
        exponents: of two.

    Returns:
        One count each: 1 if only the power of two itself can be held, 0 if it becomes zero or infinite.
    """
    powers = torch.tensor([2.0**exponent for exponent in exponents], dtype=torch.float64)
    kept = (powers.to(dtype).isfinite() & (powers.to(dtype) != 0)).int()
    for bits in range(1, _FINEST):
        next_number = (powers * (1 + 2.0**-bits)).to(dtype)
        kept[next_number.isfinite() & (next_number != powers.to(dtype)) & (kept > 0)] = bits + 1
    return [int(count) for count in kept]


def draw_formats(bits: Mapping[str, Sequence[int]], exponents: Sequence[int]) -> Figure:
    """How finely each format can tell numbers apart, over their size."""
    figure, (axis,) = new_figure(
        "Few exponents or few digits: 16 bits buy one of them",
        x_label="size of the number (a power of two)",
        y_label="bits of it that are kept",
        height=3.4,
    )
    for name, color in FORMATS.items():
        axis.step(exponents, bits[name], where="mid", color=color, linewidth=2)
    axis.text(-60, 21.6, "float32", color=BLUE, fontsize=9, weight="bold")
    axis.text(60, 8.8, "bfloat16", color=GREEN, fontsize=9, weight="bold")
    axis.text(0, 12, "float16", color=ORANGE, fontsize=9, weight="bold", ha="center")
    _powers(axis, 25)
    axis.set_ylim(0, 26)
    return figure


def draw_number_line(formats: Sequence[Any], marks: Mapping[str, float]) -> Figure:
    """Where each format begins and ends: full precision, subnormal part; `marks` are numbers to look for.

    Args:
        formats: as `describe_formats` returns them.
        marks: numbers above 0 by their names.
    """
    figure, (axis,) = new_figure(
        "What each format can hold", x_label="size of the number (a power of two)", height=0.5 * len(formats) + 1.7
    )
    for row, number_format in enumerate(formats):
        low, normal, high = (
            math.log2(value) for value in (number_format.smallest, number_format.smallest_normal, number_format.largest)
        )
        color = FORMATS.get(number_format.dtype, GREY)
        axis.barh(row, high - normal, left=normal, height=0.5, color=color)
        axis.barh(row, normal - low, left=low, height=0.5, color=color, alpha=0.35)
    for name, value in marks.items():
        axis.vlines(math.log2(value), -0.5, len(formats) - 0.5, color=INK, linewidth=0.8, linestyle=":")
        axis.text(math.log2(value), -0.55, name, fontsize=8, ha="center", va="bottom", color=INK)
    axis.set_yticks(range(len(formats)), [number_format.dtype for number_format in formats])
    axis.set_ylim(len(formats) - 0.5, -0.95)
    handles = [Patch(color=GREY, label="full precision"), Patch(color=GREY, alpha=0.35, label="fewer and fewer bits")]
    axis.legend(handles=handles, fontsize=8, loc="lower right", ncols=2, bbox_to_anchor=(1.0, 1.0))
    _powers(axis, 25)
    axis.grid(visible=False, axis="y")
    return figure


def draw_gradients(gradients: Tensor, scale: float) -> Figure:
    """Sizes of gradients, as they are and multiplied by `scale`, over what float16 can hold."""
    figure, (axis,) = new_figure(
        "Multiply the loss, and the gradients move into what float16 can hold",
        x_label="size of the gradient (a power of two)",
        y_label="share of all gradients",
        height=3.3,
    )
    sizes = gradients[gradients != 0].abs().double().log2()
    bins = range(-44, 20, 2)
    weights = [1 / len(sizes)] * len(sizes)
    lost = float((sizes < -25).double().mean())
    axis.hist(sizes.tolist(), bins, weights=weights, color=ORANGE, alpha=0.75, label="as they are")
    shifted = (sizes + math.log2(scale)).tolist()
    axis.hist(shifted, bins, weights=weights, color=BLUE, alpha=0.75, label=f"times {power_of_two(math.log2(scale))}")
    top = axis.get_ylim()[1] * 1.3
    axis.set_ylim(0, top)
    axis.axvspan(-46, -25, color=GREY, alpha=0.2)
    axis.axvspan(16, 20, color=GREY, alpha=0.2)
    axis.text(-45.4, top * 0.97, f"becomes 0: {lost:.0%} of them", va="top", color=INK, fontsize=8.5)
    axis.text(-24.6, top * 0.97, "fewer bits", va="top", color=INK, fontsize=8.5)
    axis.text(-13.6, top * 0.97, "full precision of float16", va="top", color=INK, fontsize=8.5)
    axis.text(18, top * 0.97, "inf", va="top", ha="center", color=INK, fontsize=8.5)
    axis.axvline(-14, color=GREY, linestyle=":", linewidth=1)
    axis.legend(fontsize=8.5, loc="center right")
    axis.set_xlim(-46, 20)
    _powers(axis, 8)
    return figure


def draw_small_updates(steps: int, values: Mapping[str, Sequence[float]]) -> Figure:
    """A weight after each of many small updates, in each format."""
    figure, (axis,) = new_figure(
        "An update below half a gap does not happen", x_label="update", y_label="weight", height=3.0
    )
    for (name, color), style in zip(FORMATS.items(), ("-", "-", "--"), strict=True):
        axis.plot(range(steps + 1), values[name], style, color=color, linewidth=2.5, label=name)
    axis.legend(fontsize=8.5)
    return figure


def draw_scale_errors(scales: Sequence[float], errors: Mapping[str, Sequence[float]]) -> Figure:
    """Error of float16 gradients over the loss scale; not finite where they overflow."""
    figure, (axis,) = new_figure(
        "Too small and gradients vanish, too large and they overflow",
        x_label="loss scale (a power of two)",
        y_label="error of the gradient",
        height=3.2,
    )
    logs = [math.log2(scale) for scale in scales]
    looks = zip((BLUE, ORANGE, GREEN), (3.0, 2.0, 1.2), strict=True)
    for row, ((name, series), (color, width)) in enumerate(zip(errors.items(), looks, strict=False)):
        axis.plot(logs, series, "o-", color=color, markersize=1.5 * width + 1, linewidth=width, label=name)
        bad = [x for x, error in zip(logs, series, strict=True) if not math.isfinite(error)]
        axis.plot(bad, [2.5 * 2.2**row] * len(bad), "x", color=color, markersize=5)
    axis.text(logs[0], 5.5, "x: overflow, infinite or NaN", fontsize=8.5, color=INK, va="center")
    axis.set_yscale("log")
    axis.set_ylim(1e-4, 25)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}" if value <= 1 else ""))
    axis.legend(fontsize=8.5, title="gain of the model", title_fontsize=8.5)
    _powers(axis, 4)
    return figure


def draw_scale(
    runs: Mapping[str, tuple[Sequence[float], Sequence[bool]]], *, limit: Sequence[float] | None = None, title: str = ""
) -> Figure:
    """The loss scale of every step, a cross where the step was skipped.

    Args:
        runs: by name the scale of each step, and whether the step was skipped.
        limit: the largest scale that would not have overflowed, where it is known.
        title: the message; one is there.
    """
    figure, (axis,) = new_figure(
        title or "The loss scale comes down at every overflow, and tries again later",
        x_label="step",
        y_label="loss scale (a power of two)",
        height=3.3,
    )
    if limit is not None:
        axis.plot(range(len(limit)), [math.log2(value) for value in limit], color=GREY, linestyle="--")
        axis.text(
            len(limit) - 1, math.log2(limit[-1]) + 0.35, "overflow above this", color=INK, fontsize=8.5, ha="right"
        )
    looks = zip((BLUE, ORANGE, GREEN, PINK), (1.8 if len(runs) == 1 else 3.6, 1.8, 1.4, 1.4), strict=True)
    for (name, (scales, skipped)), (color, width) in zip(runs.items(), looks, strict=False):
        logs = [math.log2(scale) for scale in scales]
        axis.step(range(len(logs)), logs, where="post", color=color, linewidth=width, label=name)
        crosses = [index for index, skip in enumerate(skipped) if skip]
        axis.plot(crosses, [logs[index] for index in crosses], "x", color=color, markersize=6, markeredgewidth=1.6)
    axis.plot([], [], "x", color=GREY, label="overflow: step skipped")
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, _LOWEST_SCALE), high + 0.8)
    axis.legend(fontsize=8.5)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_two(value)))
    return figure


def draw_losses(losses: Mapping[str, Sequence[float | None]], title: str) -> Figure:
    """Loss over the epochs, lines told apart by more than colour; an epoch without a step leaves a gap."""
    figure, (axis,) = new_figure(title, x_label="epoch", y_label="mean loss", height=3.1)
    looks = zip(COLORS, ("-", "--", ":", "-."), (5.0, 3.0, 2.0, 1.5), strict=False)
    for (name, series), (color, style, width) in zip(losses.items(), looks, strict=False):
        values = [math.nan if value is None else value for value in series]
        axis.plot(range(1, len(values) + 1), values, style, color=color, linewidth=width, label=name)
    axis.set_ylim(bottom=0)
    axis.set_xticks(range(1, 1 + max(len(series) for series in losses.values())))
    axis.legend(fontsize=8.5)
    return figure


def draw_kinds(milliseconds: Mapping[str, Mapping[str, float]]) -> Figure:
    """Device time of one forward pass in each precision, split into products and the rest, in ms."""
    figure, (axis,) = new_figure(
        "Only products become faster; the rest waits for memory",
        x_label="device time of a forward pass, ms",
        height=2.5,
    )
    names = list(milliseconds)
    start = [0.0] * len(names)
    for kind, color in (("products", BLUE), ("everything else", ORANGE)):
        widths = [milliseconds[name].get(kind, 0.0) for name in names]
        axis.barh(names, widths, left=start, color=color, height=0.55, label=kind)
        start = [begin + width for begin, width in zip(start, widths, strict=True)]
    for row, end in enumerate(start):
        axis.annotate(
            f"{end:.3g} ms", (end, row), (4, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK
        )
    axis.set_xlim(0, max(start) * 1.14)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.legend(fontsize=8.5, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    return figure


def draw_comparison(measured: Mapping[str, Sequence[Any]]) -> Figure:
    """Samples per second and peak memory by precision, one group of bars per GPU.

    Args:
        measured: by GPU what `compare_precisions` returned.
    """
    figure, axes = new_figure("Speed and memory by precision", columns=2, height=3.3)
    for axis, title in zip(axes, ("samples per second", "peak memory, MiB"), strict=True):
        axis.set_title(title, fontsize=9.5, color=INK)
        axis.set_xticks(range(len(measured)), list(measured))
        axis.grid(visible=False, axis="x")
    for group, results in enumerate(measured.values()):
        for index, result in enumerate(results):
            x = group + (index - (len(results) - 1) / 2) * 0.27
            values = result.samples_per_second, (result.peak_bytes or 0) / 2**20
            for axis, value in zip(axes, values, strict=True):
                axis.bar(x, value, width=0.25, color=FORMATS.get(result.dtype, GREY))
                axis.text(x, value, f"{value:,.0f}", ha="center", va="bottom", fontsize=7.5, color=INK)
    axes[1].set_ylim(0, axes[1].get_ylim()[1] * 1.3)
    names = dict.fromkeys(result.dtype for results in measured.values() for result in results)
    handles = [Patch(color=FORMATS.get(name, GREY), label=name) for name in names]
    axes[1].legend(handles=handles, fontsize=8, ncols=3)
    return figure


def power_of_two(exponent: float) -> str:
    """2 with a small raised exponent, in plain text."""
    return "2" + f"{exponent:.0f}".translate(_RAISED)


def _powers(axis: Axes, every: int = 20) -> None:
    low, high = axis.get_xlim()
    first = math.ceil(low / every) * every
    ticks = range(first, int(high) + 1, every)
    axis.set_xticks(list(ticks), [power_of_two(tick) for tick in ticks])
    axis.set_xlim(low, high)
