"""Figures of the notebooks: vector graphics whose axes take the colour of the page's text, light or dark.

Not for the plots that a lab writes to its results (`labkit.plotting`); `show_file` shows those.
"""

from __future__ import annotations

import base64
import io
import re
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from labkit.device import is_simulated
from labkit.notebook.notes import publish

COLORS = ("#4a90d9", "#e08a2c", "#2f9e6e", "#cc6aa3", "#8d7bd6", "#8a929c")
"""Blue, orange, green, pink, violet, grey: seen on white and on black, and told apart by colour-blind readers."""
INK = "#010203"
"""Stands for the colour of the page's text: draw with it what shall be black on white and white on black."""
_LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gpulabs",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
}


def new_figure(
    title: str,
    *,
    rows: int = 1,
    columns: int = 1,
    x_label: str = "",
    y_label: str = "",
    height: float = 3.2,
    share_x: bool = False,
    share_y: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Make a figure of `rows` x `columns` axes in the notebooks' look.

    Args:
        title: the one message of the picture.
        x_label: of the lowest axes, with the unit.
        y_label: of the leftmost axes, with the unit.
        height: of the whole figure in inches; it is 8 wide.

    Returns:
        The figure, and its axes row by row. Draw with the methods of the axes, in `COLORS` and `INK`.
    """
    figure = Figure(figsize=(8.0, height), layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    grid = figure.subplots(rows, columns, sharex=share_x, sharey=share_y, squeeze=False)
    axes: list[Axes] = list(grid.flat)
    for index, axis in enumerate(axes):
        axis.patch.set_alpha(0)
        axis.set_prop_cycle(color=list(COLORS))
        axis.grid(visible=True, color=COLORS[-1], alpha=0.3, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(colors=INK, labelsize=8.5)
        for side, spine in axis.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(COLORS[-1])
        axis.title.set_color(INK)
        axis.xaxis.label.set_color(INK)
        axis.yaxis.label.set_color(INK)
        if index >= (rows - 1) * columns:
            axis.set_xlabel(x_label, fontsize=9)
        if index % columns == 0:
            axis.set_ylabel(y_label, fontsize=9)
    return figure, axes


def show(figure: Figure, alt: str, *, is_simulated: bool = True) -> None:
    """Show a figure below the cell; on a virtual GPU its caption says that it is simulated.

    Args:
        figure: from `new_figure`.
        alt: what the picture says, for those who cannot see it.
        is_simulated: on a virtual GPU the caption says so; False for values, which are real there too, and for
            diagrams.
    """
    for text in figure.findobj(Text):
        if isinstance(text, Text) and str(text.get_color()) in ("black", "k"):
            text.set_color(INK)
    for legend in figure.findobj(Legend):
        if isinstance(legend, Legend):
            legend.get_frame().set(alpha=0, linewidth=0)
    target = io.StringIO()
    with matplotlib.rc_context(_LOOK):
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    _publish(_themed(target.getvalue(), alt), alt, is_marked=not is_simulated)


def show_file(path: Path | str, alt: str) -> None:
    """Show a PNG file, such as the plot that a lab's function has written, on a white card.

    Raises:
        OSError: there is no such file.
    """
    data = base64.b64encode(Path(path).read_bytes()).decode("ascii")
    style = "max-width:100%; height:auto; background:#fff; border-radius:.4em; padding:.4em; box-sizing:border-box;"
    source = f"data:image/png;base64,{data}"
    _publish(f'<img style="{style}" alt="{escape(alt, quote=True)}" src="{source}">', alt, is_marked=True)


def _themed(svg: str, alt: str) -> str:
    """The SVG element alone, as wide as the page, drawn in the colour of the text around it."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head, _, rest = svg.partition(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    label = f'role="img" aria-label="{escape(alt, quote=True)}"'
    return f'{head} {label} style="width:100%; min-width:34em; max-width:46em; height:auto; display:block;">{rest}'


def _publish(content: str, alt: str, **details: Any) -> None:
    caption = ""
    if is_simulated() and not details.get("is_marked"):
        style = "font-size:.8em; opacity:.75; font-style:italic;"
        caption = f'<figcaption style="{style}">virtual GPU: times and bytes are simulated</figcaption>'
    publish(
        f'<figure style="margin:.4em 0; overflow-x:auto;">{content}{caption}</figure>', f"[picture: {alt}]", "figure"
    )
