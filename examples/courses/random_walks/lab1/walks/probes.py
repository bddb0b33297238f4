"""Runs what a submission wrote, and reports what it did."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gradebox.sandbox.probe_loader import WrongReturn

MODULE = "lab1_walks.walks"
_MOST_LINES = 50


def walks(sandbox: Any, *, steps: int, seeds: list[int]) -> dict[str, Any]:
    """A walk for each seed. The generators are made here, so that nobody can tell them from another's."""
    walk = sandbox.module(MODULE).walk
    return {"walks": [_positions(walk(steps, np.random.default_rng(seed))) for seed in seeds]}


def running_means(sandbox: Any, *, values: list[list[float]]) -> dict[str, Any]:
    """The means of several objects that take turns: object 0 gets its first value, object 1 its first, and so on."""
    objects = [sandbox.module(MODULE).RunningMean() for _ in values]
    means: list[list[float]] = [[] for _ in values]
    for turn in range(max(map(len, values))):
        for place, own in enumerate(values):
            if turn < len(own):
                objects[place].add(own[turn])
                means[place].append(_number(objects[place].mean))
    return {"means": means}


def plot(sandbox: Any, *, values: NDArray[Any]) -> dict[str, Any]:
    """What the figure holds: read from Matplotlib's objects, not from pixels, so that its looks are free."""
    figure = sandbox.module(MODULE).plot(list(values))
    # Not `hasattr(figure, "axes")`: students often return Matplotlib's Axes, which has such an attribute as well.
    if not isinstance(figure, Figure):
        what = "nothing" if figure is None else f"an object of type {type(figure).__name__}"
        raise WrongReturn(f"plot() returned {what}, expected a Matplotlib Figure")
    axes = figure.get_axes()
    if not axes:
        raise WrongReturn("plot() returned a Figure without axes")
    lines = axes[0].get_lines()[:_MOST_LINES]
    return {
        "heights": [np.asarray(line.get_ydata(), dtype=np.float64) for line in lines],
        "labels": [axes[0].get_xlabel(), axes[0].get_ylabel()],
    }


def _positions(value: Any) -> NDArray[Any]:
    positions = np.asarray(value)
    if positions.ndim != 1 or positions.dtype.kind not in "iuf":
        raise WrongReturn(f"walk() returned {positions.dtype} of shape {positions.shape}, expected a vector of numbers")
    return positions.astype(np.float64)


def _number(value: Any) -> float:
    try:
        return statistics.fmean([float(value)])
    except (TypeError, ValueError):
        raise WrongReturn(f"RunningMean.mean is a {type(value).__name__}, expected a number") from None
