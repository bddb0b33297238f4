"""Probe of Lab 2's plots: drawn from made-up results, and what stands in the figure that is written."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labkit.results import AmpTraining, PrecisionResult, StabilityRun

_KINDS: dict[str, tuple[str, Any]] = {
    "plot_losses": ("lab2_mixed_precision.amp_training", AmpTraining),
    "plot_runs": ("lab2_mixed_precision.stability_tests", StabilityRun),
    "plot_precisions": ("lab2_mixed_precision.precision_comparison", PrecisionResult),
}


def plots(student: Any, *, rows: dict[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Each plot of its `rows`: what is drawn, the path told, and whether a file that cannot be is an OSError."""
    found = {}
    for name, arguments in rows.items():
        module, kind = _KINDS[name]
        results = [
            kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in one.items()})
            for one in arguments
        ]
        plot = getattr(student.module(module), name)
        with TemporaryDirectory() as folder, _watch() as drawn:
            path = Path(folder) / f"{name}.png"
            told = plot(results, path)
            written = path.is_file()
            try:
                plot(results, path / "below a file.png")
            except OSError:
                refused = True
            else:
                refused = False
        found[name] = {"values": drawn, "told": str(told) == str(path), "written": written, "refused": refused}
    return {"plots": found}


@contextmanager
def _watch() -> Iterator[list[float]]:
    """Yield a list that gets the numbers that figures show when they are written: of lines, bars and points."""
    from matplotlib.backends import backend_agg

    canvas_type: Any = backend_agg.FigureCanvasAgg
    write = canvas_type.print_png
    drawn: list[float] = []

    @functools.wraps(write)  # matplotlib asks for its signature
    def print_png(canvas: Any, *arguments: Any, **options: Any) -> Any:
        for axes in canvas.figure.axes:
            drawn.extend(float(value) for value in _values(axes))
        return write(canvas, *arguments, **options)

    canvas_type.print_png = print_png
    try:
        yield drawn
    finally:
        canvas_type.print_png = write


def _values(axes: Any) -> Iterator[Any]:
    for line in axes.get_lines():
        yield from (value for value in line.get_ydata() if value is not None and value == value)
    for patch in axes.patches:
        if hasattr(patch, "get_height"):
            yield patch.get_height()
            yield patch.get_width()
    for group in axes.collections:
        yield from (y for _, y in group.get_offsets())
