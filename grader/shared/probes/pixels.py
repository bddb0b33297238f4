"""Looks at the pixels of a figure that has been drawn: is there anything where an artist says that it shows data?

An artist of a class of the submission's may name points and draw none. What was drawn, the pixels show. Not for what
the points are (`ink.py`). Imports nothing of `grader`.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AROUND_POINTS = 3.0
"""Points (1/72 inch) around a place in which something must be drawn: a dotted line has gaps of that size."""
_FAINT = 8.0
"""Of 255 steps of a colour: below that nobody sees a difference to the ground."""
_LEAST, _ASIDE = 0.4, 0.35
"""How far a pixel goes from the ground to a colour, at the edge of a line, and how far off that way; of the way."""


def is_drawn(artist: Any, axes: Axes) -> bool:
    """Whether the colour of an artist of these axes is at half of the places of an artist's data, or more.

    Any artist's: a line may be under another one that is equal. A line of the grid has another colour. True where
    nothing can be said: before the figure is drawn, for artists without places of their own, and for places outside of
    the axes. True of matplotlib's own artists, too: they draw what they say, and a large hollow marker has nothing at
    its place, nor has a line of one point.
    """
    if _is_matplotlibs_own(artist):
        return True
    places = _places(artist)
    drawn = _pixels(axes) if len(places) else None  # a copy of the whole figure
    if drawn is None:
        return True
    inside = axes.bbox.contains
    height, width = drawn.shape[:2]
    figure: Any = axes.figure
    radius = max(2, round(_AROUND_POINTS * figure.dpi / 72))
    ground, inks = _ground(axes), _inks(axes)
    ink = []
    for x, y in places:
        column, row = int(x), int(height - y)
        if inside(x, y) and 0 <= column < width and 0 <= row < height:
            near = drawn[max(0, row - radius) : row + radius + 1, max(0, column - radius) : column + radius + 1]
            ink.append(any(_has(near.reshape(-1, 3) - ground, colour) for colour in inks))
    return not ink or 2 * sum(ink) >= len(ink)


def _is_matplotlibs_own(artist: Any) -> bool:
    """Whether matplotlib's own code draws it: neither a class of somebody else nor the object itself does."""
    import matplotlib
    from matplotlib import collections, lines

    kind = type(artist)
    code: CodeType | None = getattr(inspect.unwrap(inspect.getattr_static(kind, "draw")), "__code__", None)
    is_replaced = any(callable(inspect.getattr_static(kind, name, None)) for name in vars(artist))
    return (
        kind in (lines.Line2D, collections.PathCollection)
        and not is_replaced
        and code is not None
        and code.co_filename.startswith(str(Path(matplotlib.__file__).parent))
    )


def _pixels(axes: Axes) -> NDArray[np.int16] | None:
    """Red, green and blue of the figure as it was drawn last, from the top; None if it was not."""
    figure: Any = axes.figure
    renderer = getattr(figure.canvas, "renderer", None)
    if renderer is None:
        return None
    drawn = np.asarray(renderer.buffer_rgba())
    return drawn[..., :3].astype(np.int16) if drawn.ndim == 3 and drawn[..., 3].any() else None


def _ground(axes: Axes) -> NDArray[np.int16]:
    from matplotlib import colors

    return np.rint(np.multiply(colors.to_rgb(axes.get_facecolor()), 255)).astype(np.int16)


def _inks(axes: Axes) -> list[NDArray[np.float64]]:
    """The colours of what is in axes, as differences to the ground; what lets it show is mixed with it."""
    from matplotlib import collections, colors, lines, patches, spines

    kinds: Any = (lines.Line2D, collections.Collection, patches.Patch, spines.Spine)
    found: list[Any] = []
    for artist in axes.get_children():
        if artist is axes.patch or isinstance(artist, kinds[3]):
            continue
        if isinstance(artist, kinds[0]):
            alike = (artist.get_color(), artist.get_markerfacecolor(), artist.get_markeredgecolor())
            found += [colors.to_rgba(each, artist.get_alpha()) for each in alike]
        elif isinstance(artist, kinds[1:3]):
            found += [*colors.to_rgba_array(artist.get_facecolor()), *colors.to_rgba_array(artist.get_edgecolor())]
    rows = np.unique(np.round(np.asarray(found, dtype=float).reshape(-1, 4), 3), axis=0)
    mixed = (rows[:, :3] * 255 - _ground(axes)) * rows[:, 3:]
    return [row for row in mixed if np.linalg.norm(row) > _FAINT]


def _has(differences: NDArray[Any], colour: NDArray[np.float64]) -> bool:
    """Whether a pixel's difference to the ground goes the way to a colour."""
    length = float(np.linalg.norm(colour))
    along = differences @ colour / length**2
    aside = np.linalg.norm(differences - along[:, np.newaxis] * colour, axis=1) / length
    return bool(((along >= _LEAST) & (aside <= _ASIDE)).any())


def _places(artist: Any) -> NDArray[np.float64]:
    """Where an artist has points of data, in pixels from the lower left; none for other kinds of artists."""
    from matplotlib import collections, lines

    kinds: Any = (lines.Line2D, collections.PathCollection)
    if isinstance(artist, kinds[0]):
        points, transform = artist.get_xydata(), artist.get_transform()
    elif isinstance(artist, kinds[1]):
        points, transform = np.ma.filled(artist.get_offsets(), np.nan), artist.get_offset_transform()
    else:
        return np.zeros((0, 2))
    rows = transform.transform(np.asarray(points, dtype=float).reshape(-1, 2))
    placed: NDArray[np.float64] = rows[np.isfinite(rows).all(axis=1)]
    return placed
