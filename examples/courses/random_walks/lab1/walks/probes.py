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
    return {"walks": [_vector(walk(steps, np.random.default_rng(seed)), "walk() returned") for seed in seeds]}


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
        raise WrongReturn(f"plot() returned {_described(figure)}, expected a Matplotlib Figure")
    axes = figure.get_axes()
    if not axes:
        raise WrongReturn("plot() returned a Figure without axes")
    lines = axes[0].get_lines()[:_MOST_LINES]
    return {
        "heights": [_vector(line.get_ydata(), "plot() draws a line whose heights are") for line in lines],
        "labels": [axes[0].get_xlabel(), axes[0].get_ylabel()],
    }


def _vector(value: Any, what: str) -> NDArray[Any]:
    """Numbers in a row, whatever a student used for it; everything else is the student's mistake, not the probe's."""
    try:
        numbers = np.asarray(value)
    except ValueError:  # rows of different lengths
        raise WrongReturn(f"{what} {_described(value)} with rows of different lengths, expected numbers") from None
    if numbers.ndim == 0:
        raise WrongReturn(f"{what} {_described(value)}, expected a list or a vector of numbers")
    if numbers.dtype.kind == "O" and numbers.size:
        raise WrongReturn(f"{what} values of type {type(numbers.flat[0]).__name__}, expected a vector of numbers")
    if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
        raise WrongReturn(f"{what} {numbers.dtype} of shape {numbers.shape}, expected a vector of numbers")
    return numbers.astype(np.float64)


def _described(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _number(value: Any) -> float:
    try:
        return statistics.fmean([float(value)])
    except (TypeError, ValueError):
        raise WrongReturn(f"RunningMean.mean is a {type(value).__name__}, expected a number") from None
