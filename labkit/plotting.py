"""Plots with one readable look, written as PNG.

Not for interactive windows: `matplotlib.pyplot` is never imported, so no global figure list, backend or style is
touched, and any program or notebook that uses labkit keeps its own settings. Matplotlib itself is imported by the first
figure: the processes of a distributed training import the same modules, and draw nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labkit.device import is_simulated
from labkit.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#2266aa", "#dd7711", "#338855", "#aa3366")
"""Told apart by colour-blind readers and in grey print; use them in this order."""
INK = "#333333"
DOTS_PER_INCH = 144


def new_figure(
    title: str, *, columns: int = 1, x_label: str = "", y_label: str = "", share_y: bool = True
) -> tuple[Figure, list[Axes]]:
    """Make a figure with `columns` axes side by side that share their y axis, or have one each.

    Returns:
        The figure and its axes from left to right; draw with the methods of the axes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2 if columns == 1 else 5.2 * columns, 4.4), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, color=INK)
    axes: list[Axes] = list(figure.subplots(1, columns, sharey=share_y, squeeze=False)[0])
    for position, axis in enumerate(axes):
        axis.set_xlabel(x_label, color=INK)
        if position == 0:
            axis.set_ylabel(y_label, color=INK)
        axis.grid(visible=True, color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(colors=INK, labelsize=9)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure, axes


def save_png(figure: Figure, path: Path | str) -> Path:
    """Write the figure; the file is replaced as a whole or left alone. Missing folders are made.

    While a virtual GPU is attached the picture says that it is simulated, so that no such plot can pass for a
    measurement later on. Save inside the `with open_device(...)` block.

    Returns:
        `path`.

    Raises:
        OSError: the file cannot be written.
    """
    path = Path(path)
    if is_simulated():
        figure.text(0.995, 0.985, "simulated", ha="right", va="top", fontsize=9, style="italic", color="#aa3333")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png")
    return path
