"""Pictures for Lab 4: where the bytes of a training step are, and what checkpointing keeps of them.

Not for attention (pictures_attention.py), nor for what students plot themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor, nn

from labkit.notebook.pictures import COLORS, INK, new_figure
from labkit.results import CheckpointingResult

BLUE, ORANGE, GREEN, PINK, _, GREY = COLORS
MEBIBYTE = 2**20
PARTS = {"parameters": BLUE, "gradients": GREEN, "optimizer state": PINK, "activations and the rest": ORANGE}
"""What lies on the device in a step, from the bottom of the picture upwards, each with its colour."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What lay on the device at one moment of a step."""

    stage: str
    """"forward", "backward" or "optimizer"."""
    bytes: tuple[int, ...]
    """In the order of PARTS."""


def record_memory(blocks: nn.Sequential, optimizer: torch.optim.Optimizer, inputs: Tensor) -> list[Moment]:
    """Train one step (the loss is the mean square of the output) and note the memory behind each block, both ways.

    Args:
        blocks: on a GPU; its parameters are the optimizer's.
        optimizer: makes one step; then the gradients are set to None.
        inputs: what the first block takes.

    Returns:
        A moment before the step, one behind each block forward and backward, and three around the optimizer's step.
    """
    moments: list[Moment] = []

    def note(stage: str) -> None:
        moments.append(Moment(stage=stage, bytes=_parts(blocks, optimizer, inputs.device)))

    note("forward")
    x = inputs
    for block in blocks:
        x = block(x)
        x.register_hook(lambda gradient: note("backward"))
        note("forward")
    loss = x.square().mean()
    del x
    loss.backward()
    note("backward")
    optimizer.step()
    note("optimizer")
    optimizer.zero_grad(set_to_none=True)
    note("optimizer")
    return moments


def _parts(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> tuple[int, ...]:
    parameters = list(model.parameters())
    state = [value for kept in optimizer.state.values() for value in kept.values() if isinstance(value, Tensor)]
    known = (
        sum(each.nbytes for each in parameters),
        sum(each.grad.nbytes for each in parameters if each.grad is not None),
        sum(each.nbytes for each in state if each.device == device),
    )
    return (*known, max(0, torch.cuda.memory_allocated(device) - sum(known)))


def plot_step(moments: Sequence[Moment]) -> Figure:
    """Stacked memory in MiB over the moments of one or more steps, the stages marked below."""
    figure, (axis,) = new_figure("A training step fills and empties the memory", x_label="", y_label="allocated, MiB")
    rows = [[moment.bytes[part] / MEBIBYTE for moment in moments] for part in range(len(PARTS))]
    axis.stackplot(range(len(moments)), rows, colors=list(PARTS.values()), labels=list(PARTS), alpha=0.85)
    top = max(sum(moment.bytes) for moment in moments) / MEBIBYTE
    peak = max(range(len(moments)), key=lambda index: sum(moments[index].bytes))
    axis.annotate(
        f"peak here: {top:,.0f} MiB", (peak, top), (peak, 1.1 * top), ha="center", color=INK, fontsize=9,
        arrowprops={"arrowstyle": "-", "color": INK},
    )  # fmt: skip
    begin = 0
    for index in range(1, len(moments) + 1):
        if index < len(moments) and moments[index].stage == moments[begin].stage:
            continue
        axis.text(
            (begin + index - 1) / 2, -0.035 * top, moments[begin].stage, ha="center", va="top", fontsize=8.5, color=INK
        )
        if index < len(moments):
            axis.axvline(index - 0.5, color=GREY, linewidth=0.8, linestyle=":")
        begin = index
    axis.set_xticks([])
    axis.set_xlim(0, len(moments) - 1)
    axis.set_ylim(0, 1.2 * top)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def draw_segments(layers: int = 12, intervals: Sequence[int | None] = (None, 1, 3, 4, 12)) -> Figure:
    """What is there when backward has just computed the last segment again: one row of blocks per interval."""
    figure, (axis,) = new_figure("What is kept when backward begins", height=0.55 * len(intervals) + 1.5)
    for row, interval in enumerate(intervals):
        y = len(intervals) - row
        for block in range(layers):
            segment = layers if interval is None else interval
            inside = interval is None or block // segment == (layers - 1) // segment
            axis.add_patch(
                Rectangle(
                    (block, y - 0.3), 0.94, 0.6, facecolor=ORANGE if inside else "none", edgecolor=GREY, alpha=0.85
                )
            )
            if interval is not None and block % segment == 0:
                axis.add_patch(Rectangle((block, y - 0.3), 0.16, 0.6, facecolor=BLUE))
        name = "no checkpoints" if interval is None else f"every {interval}"
        axis.text(-0.3, y, name, ha="right", va="center", color=INK, fontsize=10)
    axis.text(layers / 2, 0.3, f"blocks 1 to {layers}, forward from left to right", ha="center", color=INK, fontsize=9)
    legend = [
        Patch(facecolor=BLUE, label="input of a segment: kept from forward to backward"),
        Patch(facecolor=ORANGE, label="all that a block computes inside"),
        Patch(facecolor="none", edgecolor=GREY, label="gone; computed again when backward gets there"),
    ]
    axis.legend(handles=legend, loc="upper center", bbox_to_anchor=(0.5, 0.0), frameon=False)
    axis.set_xlim(-2.6, layers + 0.2)
    axis.set_ylim(0.1, len(intervals) + 0.5)
    axis.axis("off")
    return figure


def draw_interval_model(layers: int = 12, insides: Sequence[int] = (1, 4, 16)) -> Figure:
    """Kept inputs plus one segment's inside, against the interval, for blocks whose inside is this many inputs."""
    figure, (axis,) = new_figure(
        "Fewer checkpoints, longer segments: two costs that trade off",
        x_label="interval: blocks per segment", y_label="memory, in inputs of a block",
    )  # fmt: skip
    steps = [step for step in range(1, layers + 1) if layers % step == 0]
    for inside, color in zip(insides, (BLUE, GREEN, ORANGE), strict=False):
        units = [layers / step + step * inside for step in steps]
        axis.plot(steps, units, "o-", color=color)
        axis.annotate(
            f"inside of a block = {inside} x input", (steps[-1], units[-1]), (6, 0), textcoords="offset points",
            color=color, fontsize=9, va="center",
        )  # fmt: skip
    axis.set_yscale("log")
    axis.set_xticks(steps)
    axis.set_xlim(0.5, layers * 1.55)
    return figure


def plot_intervals(results: Sequence[CheckpointingResult], chosen: CheckpointingResult, budget: float) -> Figure:
    """Measured peak and time of each interval side by side, the budget (bytes) as a line, the chosen one in colour."""
    figure, axes = new_figure("What the interval does to memory and time", columns=2)
    names = ["none" if each.checkpoint_every is None else str(each.checkpoint_every) for each in results]
    colors = [GREEN if each is chosen else GREY for each in results]
    peaks = [(each.peak_bytes or 0) / MEBIBYTE for each in results]
    axes[0].bar(names, peaks, color=colors)
    axes[0].axhline(budget / MEBIBYTE, color=ORANGE, linestyle="--")
    axes[0].text(1, budget / MEBIBYTE, "budget", color=ORANGE, ha="center", va="bottom", fontsize=9)
    axes[0].set_ylabel("peak of a step, MiB", color=INK, fontsize=9)
    times = [each.step_seconds * 1e3 for each in results]
    axes[1].bar(names, times, color=colors)
    axes[1].set_ylabel("one step, ms", color=INK, fontsize=9)
    for axis, values, show in ((axes[0], peaks, "{:,.0f}"), (axes[1], times, "{:.3g}")):
        axis.set_xlabel("checkpoint_every", color=INK)
        for index, value in enumerate(values):
            axis.text(index, value, show.format(value), ha="center", va="bottom", fontsize=8, color=INK)
    return figure


def plot_growth(allocated: Sequence[int], *, model_bytes: int) -> Figure:
    """What was allocated before each training step, in MiB, next to what the model itself is."""
    figure, (axis,) = new_figure(
        "Does it stay flat?", height=3.2, x_label="training step", y_label="allocated before it, MiB"
    )
    axis.plot(
        range(1, len(allocated) + 1), [each / MEBIBYTE for each in allocated], "o-", color=BLUE, label="allocated"
    )
    axis.axhline(model_bytes / MEBIBYTE, color=GREY, linestyle="--", label="parameters alone")
    axis.set_ylim(0, 1.15 * max(*allocated, model_bytes) / MEBIBYTE)
    axis.legend(frameon=False)
    return figure


def kept_for_backward(operation: Callable[..., Tensor], *inputs: Tensor) -> list[tuple[str, str, int]]:
    """What autograd keeps of one operation: (what it is, shape and dtype, bytes) of each tensor, each storage once.

    Args:
        operation: called with `inputs`; a module or a function.
        inputs: tensors; those that are to have a gradient require one.
    """
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = operation(*inputs)
    names = {_storage(each): "its input" for each in inputs} | {_storage(output): "its output"}
    parameters = operation.parameters() if isinstance(operation, nn.Module) else ()
    names |= {_storage(each): "a parameter" for each in parameters}
    entries: dict[int, tuple[str, str, int]] = {}
    for tensor in kept:
        what = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        entries.setdefault(_storage(tensor), (names.get(_storage(tensor), "something new"), what, tensor.nbytes))
    return list(entries.values())


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
