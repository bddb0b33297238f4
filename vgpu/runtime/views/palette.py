"""Colours and legends that the panels of a picture share.

Not here: the panels (`vgpu.runtime.views.panels`, `vgpu.runtime.views.curves`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which stays distinct with colour-blindness.
BLUE, SKY, GREEN, ORANGE, PINK, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#F0E442"
RED, GREY, PALE, INK = "#D55E00", "#999999", "#DDDDDD", "#333333"


def side_label(axis: Axes, text: str) -> None:
    """The label of a vertical axis, at the same distance in every panel."""
    axis.set_ylabel(text, fontsize=8)
    axis.yaxis.set_label_coords(-0.048, 0.5)


def legend(axis: Axes, entries: Mapping[str, str], title: str, lines: set[str] | frozenset[str] = frozenset()) -> None:
    """What each colour means, to the right of the panel; the entries in `lines` are drawn as lines."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Line2D([], [], color=colour, linewidth=1.2, linestyle="--" if label == "reserved" else "-", label=label)
        if label in lines
        else Patch(facecolor=colour, label=label, edgecolor=GREY, linewidth=0.3)
        for label, colour in entries.items()
    ]
    made = axis.legend(
        handles=handles, title=title, loc="upper left", bbox_to_anchor=(1.008, 1.06), frameon=False, fontsize=7.5,
        title_fontsize=8, alignment="left", handlelength=1.2, labelspacing=0.25, borderpad=0.1,
    )  # fmt: skip
    made.get_title().set_fontweight("bold")
