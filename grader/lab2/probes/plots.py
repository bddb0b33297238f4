"""Probes of Lab 2's plots: of made-up results, and by the programs; and what stands in the figure that is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from grader.shared.probes.figures import watch_png
from grader.shared.probes.support import run_program
from labkit.results import AmpTraining, PrecisionResult, StabilityRun

_KINDS: dict[str, tuple[str, Any]] = {
    "plot_losses": ("lab2_mixed_precision.amp_training", AmpTraining),
    "plot_runs": ("lab2_mixed_precision.stability_tests", StabilityRun),
    "plot_precisions": ("lab2_mixed_precision.precision_comparison", PrecisionResult),
}


def plots(student: Any, *, rows: dict[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Each plot of its `rows`: what is drawn, the path told, and whether a file that cannot be is an OSError.

    The plot's name may have words after it, which tell several apart.
    """
    found = {}
    for name, arguments in rows.items():
        function = name.split()[0]
        module, kind = _KINDS[function]
        results = [
            kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in one.items()})
            for one in arguments
        ]
        plot = getattr(student.module(module), function)
        with TemporaryDirectory() as folder, watch_png(_figure) as drawn:
            path = Path(folder) / f"{function}.png"
            told = plot(results, path)
            written = path.is_file()
            try:
                plot(results, path / "below a file.png")
            except OSError:
                refused = True
            else:
                refused = False
        found[name] = {
            "figure": drawn[0] if drawn else {},
            "told": str(told) == str(path),
            "written": written,
            "refused": refused,
        }
    return {"plots": found}


def program(student: Any, *, module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run `module` ("lab2_mixed_precision.amp_training") with these arguments; what it wrote, and its last figure."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, watch_png(_figure) as drawn:
        told = run_program(student, module, arguments, Path(folder, "results"))
    return {**told, "figure": drawn[-1] if drawn else {}}


def _figure(figure: Any) -> dict[str, Any]:
    """`series` of points with their label and what stands at the ticks; `axes`, by the words below and beside them;
    entries of legends (`legend`); all `texts`."""
    from matplotlib.legend import Legend
    from matplotlib.text import Text

    return {
        "series": [one for axes in figure.axes for one in _series(axes)],
        "axes": [[axes.get_xlabel(), axes.get_ylabel()] for axes in figure.axes],
        "legend": [text.get_text() for legend in figure.findobj(Legend) for text in legend.get_texts()],
        "texts": [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()],
    }


def _series(axes: Any) -> Iterator[dict[str, Any]]:
    """Of lines, bars and points: the numbers that are finite."""
    ticks = {"x_ticks": _ticks(axes.xaxis), "y_ticks": _ticks(axes.yaxis)}
    for line in axes.get_lines():
        yield {"label": str(line.get_label()), "points": _finite(line.get_xydata()), **ticks}
    in_groups = {id(patch) for group in axes.containers for patch in group if hasattr(patch, "get_height")}
    groups = [(group.get_label(), list(group)) for group in axes.containers]
    groups.append(("", [patch for patch in axes.patches if id(patch) not in in_groups]))
    for label, patches in groups:
        bars = [patch for patch in patches if hasattr(patch, "get_height")]
        middles = [(bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height() / 2) for bar in bars]
        heights = [(x, bar.get_height()) for (x, _), bar in zip(middles, bars, strict=True)]
        widths = [(bar.get_width(), y) for (_, y), bar in zip(middles, bars, strict=True)]
        for points in (heights, widths):
            yield {"label": str(label), "points": _finite(points), **ticks}
    for group in axes.collections:
        yield {"label": str(group.get_label()), "points": _finite(group.get_offsets()), **ticks}


def _ticks(axis: Any) -> list[list[Any]]:
    """Places with what is written there."""
    return [
        [float(place), label.get_text()]
        for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
    ]


def _finite(points: Any) -> list[list[float]]:
    array = np.asarray(points, dtype=float).reshape(-1, 2)
    rows: list[list[float]] = array[np.isfinite(array).all(axis=1)].tolist()
    return rows
