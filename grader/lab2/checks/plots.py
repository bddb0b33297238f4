"""What Lab 2's plots must show: the numbers that they were given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradebox.assertions import require, require_equal
from gradebox.fresh import Fresh
from gradebox.submission import Submission

_CLOSE = 0.001
"""Relative: a number in a figure is the one that it was given, but for a rounding of the student's."""


def require_plots(submission: Submission, fresh: Fresh) -> None:
    """Fail unless each plot shows the numbers of made-up results, and is where it should be."""
    epochs = fresh.integer(3, 5)

    def losses(*, gap: bool = False) -> list[float | None]:
        found: list[float | None] = [fresh.uniform(0.1, 3.0) for _ in range(epochs)]
        return [*found[:-1], None] if gap else found

    trained = {"float32": losses(), "bfloat16": losses(), "float16": losses(gap=True)}
    unstable: list[list[float | None]] = [losses(), losses(gap=True), [None] * epochs]
    base = {"step_seconds": fresh.uniform(0.01, 0.1), "peak_bytes": fresh.integer(10**8, 10**9), "accuracy": 0.9}
    low = {"step_seconds": base["step_seconds"] / fresh.uniform(1.5, 3), "peak_bytes": fresh.integer(10**8, 10**9)}
    rows: dict[str, list[dict[str, Any]]] = {
        "plot_losses": [
            _training(name) | {"losses": value, "final_scale": None, "seconds": 1.0, "peak_bytes": None}
            for name, value in trained.items()
        ],
        "plot_runs": [
            _training("float16")
            | {"losses": value, "gain": 2.0**-index, "scales": [1.0] * epochs}
            | {"nonfinite_parameters": [], "nonfinite_layer": None}
            for index, value in enumerate(unstable)
        ],
        "plot_precisions": [
            {"device": "cuda", "dtype": name, "samples_per_second": 1.0, **values}
            for name, values in (("float32", base), ("bfloat16", {**low, "accuracy": fresh.uniform(0.5, 0.8)}))
        ],
    }
    last = rows["plot_precisions"][1]
    wanted: dict[str, list[float]] = {
        "plot_losses": [loss for row in trained.values() for loss in row if loss is not None],
        "plot_runs": [loss for row in unstable for loss in row if loss is not None],
        "plot_precisions": [
            base["step_seconds"] / last["step_seconds"],
            last["peak_bytes"] / base["peak_bytes"],
            last["accuracy"] / base["accuracy"],
        ],
    }
    seen = submission.numeric_probe("lab2.plots.plots", rows=rows)
    for name, plot in seen.plots.items():
        require(plot["written"] and plot["told"], f"{name}(results, path) did not write `path`, or returned another")
        require(plot["refused"], f"{name}(results, path) raised no OSError for a file that cannot be written")
        missing = [value for value in wanted[name] if not _is_shown(value, plot["values"])]
        require_equal(
            [round(value, 4) for value in missing],
            [],
            what=f"numbers that {name}() was to show and does not, as they are, in percent or as logarithms",
        )


def _training(dtype: str) -> dict[str, Any]:
    return {"device": "cuda", "dtype": dtype, "optimizer_steps": 3, "skipped_steps": 0}


def _is_shown(value: float, drawn: Sequence[float]) -> bool:
    """Whether a number is drawn: as it is, in percent, or as its logarithm."""
    forms = (value, 100 * value, math.log10(value), math.log(value), math.log2(value))
    return any(abs(one - form) <= _CLOSE * max(abs(form), 0.01) for one in drawn for form in forms)
