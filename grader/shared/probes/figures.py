"""Looks at figures when matplotlib writes them as PNG. What is looked for is each probe's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from grader.shared.probes.kept import function, notes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Seen = TypeVar("Seen")


def words_of(figure: Figure) -> list[str]:
    """All that is written in a figure."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


@contextmanager
def _laid_out(figure: Figure) -> Iterator[None]:
    """While a picture is written its layout stays: `savefig` has drawn the figure once for that, to nowhere."""
    engine = figure.get_layout_engine()
    if engine is None:
        yield
        return
    figure.set_layout_engine("none")
    try:
        yield
    finally:
        figure.set_layout_engine(engine)


@contextmanager
def watch_png(look: Callable[[Figure], Seen]) -> Iterator[list[Seen]]:
    """Yield a list that gets, at the end of the block, what `look` finds in each figure written as PNG, when it is.

    Where `look` fails, on an artist that is not like others, the picture is written all the same, and the error comes
    at the end: a person looks at what we cannot read, and nobody takes it for an empty picture.
    """
    from matplotlib.backends import backend_agg

    canvas_type: Any = backend_agg.FigureCanvasAgg
    write = canvas_type.print_png
    views: list[Seen] = []
    # What the function that is put there holds notes, and shows nothing.
    view, viewed = notes()
    fail, failures = notes()

    @function
    def look_at(figure: Figure) -> None:
        try:
            view(look(figure))
        except Exception as error:
            fail(error)

    @functools.wraps(write)  # matplotlib asks for its signature
    def print_png(canvas: Any, *arguments: Any, **options: Any) -> Any:
        # To pack a picture well takes as long as to draw it, and nobody keeps this one.
        packing = {"compress_level": 1, **(options.pop("pil_kwargs", None) or {})}
        with _laid_out(canvas.figure):
            written = write(canvas, *arguments, pil_kwargs=packing, **options)
        look_at(canvas.figure)  # with its pixels
        return written

    canvas_type.print_png = print_png
    try:
        yield views
    finally:
        canvas_type.print_png = write
        views += viewed()
    for error in failures():
        raise error
