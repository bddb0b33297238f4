"""Tells which artists of a plot leave something to see, within the limits of the axes or outside of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grader.shared.probes.pixels import is_drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

_FAINT = 0.03
"""Difference to the ground, of a colour's range, below which nobody sees a line."""
_SLACK = 1e-9
"""Of the larger of two bars."""
_NOTHING = ("None", "none", " ", "", None)


def seen(axes: Axes) -> list[Any]:
    """The children of axes that leave ink: visible, not transparent, not in the colour of the ground, not under a bar,
    and if the figure has been drawn, with something at the places of their points.

    Markers are under a bar if none of them is seen. A bar is under another one if that is drawn later, is opaque, and
    reaches beyond its end: then nobody can read it.
    """
    children = [artist for artist in axes.get_children() if artist is not axes.patch and _leaves_ink(artist, axes)]
    covered = {id(bar) for bar in _covered(axes, children)}
    covered |= {id(artist) for artist in children if (under := under_bars(artist, axes)).size and under.all()}
    return [artist for artist in children if id(artist) not in covered and is_drawn(artist, axes)]


def under_bars(artist: Any, axes: Axes) -> NDArray[np.bool_]:
    """Which of its points nobody sees, because a bar that is opaque and drawn later has the whole marker under it.

    For points without a line that joins them: a line is seen between the bars. Of anything else, no point.
    """
    from matplotlib import collections, lines
    from matplotlib.patches import Rectangle

    kinds: Any = (lines.Line2D, collections.PathCollection)
    if isinstance(artist, kinds[0]) and artist.get_linestyle() in _NOTHING:
        points, places, size = artist.get_xydata(), artist.get_transform(), float(artist.get_markersize())
    elif isinstance(artist, kinds[1]):
        points, places = np.ma.filled(artist.get_offsets(), np.nan), artist.get_offset_transform()
        size = float(np.sqrt(np.max(artist.get_sizes(), initial=0.0)))
    else:
        return np.zeros(0, bool)
    center = places.transform(np.asarray(points, dtype=float).reshape(-1, 2))
    figure: Any = axes.figure
    half = size / 2 * figure.dpi / 72
    later = sorted(axes.get_children(), key=lambda each: each.get_zorder())
    later = later[1 + next(place for place, each in enumerate(later) if each is artist) :]
    hidden = np.zeros(len(center), bool)
    for bar in later:
        if isinstance(bar, Rectangle) and bar is not axes.patch and bar.get_visible() and _is_opaque(bar):
            low, high = bar.get_window_extent().get_points()
            hidden |= ((center - half >= low) & (center + half <= high)).all(axis=1)
    return hidden


def _leaves_ink(artist: Any, axes: Axes) -> bool:
    from matplotlib import collections, lines, patches

    kinds: Any = (lines, collections, patches)
    if not artist.get_visible() or artist.get_alpha() == 0:
        return False
    if isinstance(artist, kinds[0].Line2D):
        inks: list[object] = []
        if artist.get_linestyle() not in _NOTHING and artist.get_linewidth() > 0:
            inks.append(artist.get_color())
        if artist.get_marker() not in _NOTHING and artist.get_markersize() > 0:
            inks += [artist.get_markerfacecolor(), artist.get_markeredgecolor()]
    elif isinstance(artist, kinds[2].Patch):
        inks = [artist.get_facecolor()] if artist.get_fill() else []
        inks += [artist.get_edgecolor()] if artist.get_linewidth() > 0 else []
        inks += [artist.get_edgecolor()] if artist.get_hatch() else []
    elif isinstance(artist, kinds[1].Collection):
        if artist.get_array() is not None:  # colours that follow from numbers
            return True
        inks = [*artist.get_facecolor()]
        inks += [*artist.get_edgecolor()] if any(width > 0 for width in np.atleast_1d(artist.get_linewidth())) else []
        if isinstance(artist, kinds[1].PathCollection) and not any(artist.get_sizes() > 0):
            return False
    else:
        return True
    alpha = artist.get_alpha()
    return any(_differs(ink, alpha if np.isscalar(alpha) else None, axes) for ink in inks)


def _differs(ink: Any, alpha: Any, axes: Axes) -> bool:
    """Whether a colour can be told from the ground that it is drawn on."""
    from matplotlib import colors

    to_rgba: Any = colors.to_rgba
    *colour, opacity = to_rgba(ink, alpha)
    ground = to_rgba(axes.get_facecolor())[:3]
    return bool(opacity * max(abs(one - other) for one, other in zip(colour, ground, strict=True)) > _FAINT)


def _covered(axes: Axes, children: Sequence[Any]) -> Iterator[Rectangle]:
    from matplotlib.patches import Rectangle

    def by_data(bar: Rectangle) -> bool:
        return bar.get_data_transform().contains_branch_seperately(axes.transData) == (True, True)

    bars = [artist for artist in children if isinstance(artist, Rectangle) and by_data(artist)]
    bars.sort(key=lambda bar: bar.get_zorder())  # of equal ones the first is drawn first
    boxes = np.array([_box(bar) for bar in bars]).reshape(-1, 4)
    for place, box in enumerate(boxes):
        covers = [later for later in range(place + 1, len(bars)) if _is_opaque(bars[later])]
        above = boxes[covers]
        slack = _SLACK * np.abs(above).max(initial=0.0)
        around = (above[:, :2] <= box[:2] + slack).all(axis=1) & (above[:, 2:] >= box[2:] - slack).all(axis=1)
        beyond = np.abs(above - box).max(axis=1, initial=0.0) > slack
        if (around & beyond).any() and (box[2:] > box[:2]).all():
            yield bars[place]


def _box(bar: Rectangle) -> list[float]:
    """Left, bottom, right and top."""
    x, y, width, height = bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()
    return [min(x, x + width), min(y, y + height), max(x, x + width), max(y, y + height)]


def _is_opaque(bar: Rectangle) -> bool:
    from matplotlib import colors

    opacity: float = colors.to_rgba(bar.get_facecolor())[3]  # which includes the artist's own
    return bool(bar.get_fill()) and opacity == 1
