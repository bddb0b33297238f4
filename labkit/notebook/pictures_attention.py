"""Pictures for Lab 4's attention: who sees whom, which tiles are computed, and what is corrected from tile to tile.

Not for the algorithms: nothing here computes attention.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from labkit.notebook.pictures import COLORS, INK, new_figure

BLUE, ORANGE, GREEN, PINK, _, GREY = COLORS


def weights_of(attention: Callable[[Tensor, Tensor, Tensor], Tensor], queries: int, keys: int, device: str) -> Tensor:
    """The weights [queries, keys] that an attention gives: its output where row j of V is the j-th unit vector."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, count, keys, generator=generator).to(device) for count in (queries, keys))
    value = torch.eye(keys)[None, None].to(device)
    return attention(query, key, value)[0, 0].detach().float().cpu()


def draw_weights(maps: Mapping[str, Tensor]) -> Figure:
    """Weights [queries, keys] side by side: blue where a query looks, the stronger the more; empty where not."""
    figure, axes = new_figure("Who looks at whom", columns=len(maps), height=3.0)
    for axis, (title, weights) in zip(axes, maps.items(), strict=True):
        queries, keys = weights.shape
        for row in range(queries):
            for column in range(keys):
                weight = float(weights[row, column])
                axis.add_patch(
                    Rectangle((column, queries - 1 - row), 0.92, 0.92, facecolor=BLUE if weight > 0 else "none",
                              edgecolor=GREY, linewidth=0.6, alpha=min(1.0, 0.25 + weight) if weight > 0 else 1.0)
                )  # fmt: skip
        axis.set_xlim(-0.1, keys)
        axis.set_ylim(-0.1, queries)
        axis.set_aspect("equal")
        axis.set_title(title, fontsize=10, color=INK)
        axis.set_xticks([0.46, keys - 0.54], ["key 0", f"key {keys - 1}"])
        axis.set_yticks([0.46, queries - 0.54], [f"query {queries - 1}", "query 0"])
        axis.tick_params(length=0)
        axis.grid(visible=False)
        for spine in axis.spines.values():
            spine.set_visible(False)
    return figure


def draw_tiles(tiles: int = 6, *, current: tuple[int, int] = (3, 2)) -> Figure:
    """The square of all scores, cut into tiles: which are computed, which nobody sees, and which one is there now."""
    figure, (axis,) = new_figure("Of all scores, one tile exists at a time", height=4.4)
    for row in range(tiles):
        for column in range(tiles):
            color = ORANGE if (row, column) == current else BLUE if column <= row else "none"
            hatch = "///" if column == row else ""
            tile = Rectangle((column, tiles - 1 - row), 0.93, 0.93, facecolor=color, hatch=hatch, edgecolor=GREY)
            tile.set(alpha=0.85, linewidth=0.8)
            axis.add_patch(tile)
    y = tiles - 1 - current[0]
    names = (("largest score", "m"), ("sum of exp", "l"), ("weighted values", "O"))
    for index, (name, letter) in enumerate(names):
        x = tiles + 1.7 + 2.1 * index
        axis.add_patch(Rectangle((x, 0), 0.5, tiles - 0.07, facecolor="none", edgecolor=GREY))
        axis.add_patch(Rectangle((x, y), 0.5, 0.93, facecolor=ORANGE))
        axis.text(x + 0.25, tiles + 0.1, f"{letter}\n", ha="center", color=INK, fontsize=12, fontweight="bold")
        axis.text(x + 0.25, tiles + 0.1, name, ha="center", color=INK, fontsize=8)
    axis.annotate("", (tiles + 1.6, y + 0.46), (tiles + 0.05, y + 0.46), arrowprops={"arrowstyle": "->", "color": INK})
    axis.text(tiles + 4.05, -0.45, "kept: a few numbers per query", ha="center", color=INK, fontsize=9)
    axis.text(tiles / 2, -0.45, "keys, tile after tile", ha="center", color=INK, fontsize=9)
    axis.text(-0.25, tiles / 2, "queries", ha="right", va="center", rotation=90, color=INK, fontsize=9)
    legend = [
        Patch(facecolor=BLUE, label="computed, and thrown away again"),
        Patch(facecolor=BLUE, hatch="///", edgecolor=GREY, label="partly hidden by the causal mask"),
        Patch(facecolor=ORANGE, label="in fast memory at this moment"),
        Patch(facecolor="none", edgecolor=GREY, label="hidden: never computed"),
    ]
    axis.legend(handles=legend, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, frameon=False)
    axis.set_xlim(-0.7, tiles + 7.6)
    axis.set_ylim(-0.6, tiles + 1.0)
    axis.set_aspect("equal")
    axis.axis("off")
    return figure


def draw_running(scores: Sequence[float], tile: int) -> Figure:
    """The scores of one query, tile by tile, with the largest so far and the sum of exp(score - largest) so far."""
    row = torch.tensor(list(scores), dtype=torch.float64)
    stops = [*range(tile, len(row), tile), len(row)]
    figure, axes = new_figure("One query, seen tile by tile", columns=2, height=3.6)
    left, right = axes
    left.bar(
        range(len(row)), row.tolist(), color=[BLUE if index // tile % 2 == 0 else GREEN for index in range(len(row))]
    )
    largest = [float(row[:stop].max()) for stop in stops]
    for stop, value in zip(stops, largest, strict=True):
        left.plot([stop - tile - 0.45, stop - 0.55], [value, value], color=ORANGE, linewidth=2.5)
        left.text(stop - tile / 2 - 0.5, value + 0.15, f"m = {value:g}", ha="center", color=ORANGE, fontsize=9)
    left.set_xlabel("key", color=INK)
    left.set_ylabel("score", color=INK)
    left.set_ylim(min(0.0, float(row.min())) - 0.3, float(row.max()) + 1.0)
    left.set_title("m: the largest so far", fontsize=10, color=INK)
    sums = [float((row[:stop] - value).exp().sum()) for stop, value in zip(stops, largest, strict=True)]
    factors = [torch.tensor(old - new).exp().item() for old, new in pairwise(largest)]
    names = ["tile 1", *(f"old sum x {factor:.3f},\nand tile {index}" for index, factor in enumerate(factors, start=2))]
    right.bar(names, sums, color=ORANGE, width=0.5)
    for index, value in enumerate(sums):
        right.text(index, value, f"l = {value:.3f}", ha="center", va="bottom", fontsize=9, color=INK)
    right.set_ylim(0, 1.15 * max(sums))
    right.set_title("l: the sum so far, measured from m", fontsize=10, color=INK)
    return figure
