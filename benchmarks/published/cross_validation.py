"""How good the times are for measurements that nobody fitted to: every source left out in turn.

The sources are whoever published a figure, and this project, which ran the same programs on a card (`as_figures`).

Each constant is scaled by a little, and every figure run again: that gives the slopes of log(simulated) by
log(constant). Without the figures of one source the constants are then fitted anew (least squares, linear in the
logarithms; a constant that nothing else pins down goes back to its prior), and that source's figures are predicted.
`python -m benchmarks.published.cross_validation` takes some minutes and writes `benchmarks/results/`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy
from numpy.typing import NDArray

from benchmarks.measure import save
from benchmarks.measured import as_figures
from benchmarks.published import constants, figures, run
from benchmarks.published.figures import Comparison

Array = NDArray[numpy.float64]
# Downwards: some are ratios near 1.
_STEP = 0.95
# What a figure is off by itself, and how far a prior is from the truth: spreads of logarithms.
_FIGURE_SPREAD, _PRIOR_SPREAD = 0.10, 0.40
# Fitted by themselves, card by card, or nothing to fit: memory is counted. Training a GPT of a billion parameters takes
# longer than all the rest.
_LEFT_OUT = ("memory peak", "program: memory peak", "multi-GPU scaling", "matmul, other cards", "AMP gain")
_TOO_LONG = ("gpt_tokens",)


def main() -> Path:
    """Fit, leave out, print, write."""
    every = [*figures.load(), *as_figures.load()]
    chosen = [figure for figure in every if figure.group not in _LEFT_OUT and figure.workload not in _TOO_LONG]
    found = run.run_all(chosen, say=lambda line: None)
    known = [*constants.fitted(), constants.pace_of_host(as_figures.SOURCE)]
    slopes = numpy.stack([_slopes(found, constant) for constant in known], axis=1)
    errors = numpy.array([math.log(one.ratio) for one in found])
    priors = numpy.array([math.log(constant.prior) for constant in known])
    unseen = _predictions(found, slopes, errors, priors)
    rows = _rows(found, errors, unseen)
    for group, count, seen, left_out in rows:
        print(f"{group:28} {count:3} figures, fitted {seen:6.1%}, source left out {left_out:6.1%}")
    groups = {name: {"figures": count, "fitted": seen, "left_out": out} for name, count, seen, out in rows}
    return save("published_cross_validation", {"constants": [constant.name for constant in known], "groups": groups})


def _slopes(found: Sequence[Comparison], constant: constants.Constant) -> Array:
    touched = [one.figure for one in found if constant.touches(one.figure)]
    with constant.scaled(_STEP):
        again = {one.figure.id: one.ratio for one in run.run_all(touched, say=lambda line: None)}
    return numpy.array([math.log(again.get(one.figure.id, one.ratio) / one.ratio) / math.log(_STEP) for one in found])


def _predictions(found: Sequence[Comparison], slopes: Array, errors: Array, priors: Array) -> Array:
    """Errors (log ratio) of each figure with the constants fitted to all sources but its own."""
    unseen = numpy.empty_like(errors)
    for publisher in {one.figure.publisher for one in found}:
        own = numpy.array([one.figure.publisher == publisher for one in found])
        weights = slopes[~own] / _FIGURE_SPREAD
        normal = weights.T @ weights + numpy.eye(len(priors)) / _PRIOR_SPREAD**2
        target = -weights.T @ (errors[~own] / _FIGURE_SPREAD) + priors / _PRIOR_SPREAD**2
        unseen[own] = errors[own] + slopes[own] @ numpy.linalg.solve(normal, target)
    return unseen


def _rows(found: Sequence[Comparison], errors: Array, unseen: Array) -> list[tuple[str, int, float, float]]:
    groups: dict[str, list[int]] = {}
    for index, one in enumerate(found):
        groups.setdefault(one.figure.group, []).append(index)
    own = [index for index, one in enumerate(found) if one.figure.source == as_figures.SOURCE]
    groups["all published"] = [index for index in range(len(found)) if index not in own]
    groups["all programs on a card of ours"] = own
    groups["all"] = list(range(len(found)))

    def median(values: Array, places: list[int]) -> float:
        return statistics.median(abs(math.expm1(values[place])) for place in places)

    return [(name, len(places), median(errors, places), median(unseen, places)) for name, places in groups.items()]


if __name__ == "__main__":
    main()
