"""How good the times are for measurements that nobody fitted to: every source left out in turn.

The sources are whoever published a figure, and this project, which ran the same programs on a card (`as_figures`).

Each constant is scaled by a little, and every figure run again (large models with fewer layers): that gives the slopes
of log(simulated) by log(constant). Without the figures of one source the constants are then fitted again (linear in the
logarithms; a constant that nothing else pins down goes back to its prior), and that source's figures are predicted. A
figure that is far from all others counts less (P. Huber, Ann. Math. Statist. 35(1), 1964): one bad measurement must not
move what others say. What the host bounds depends on the host as well, which few sources name and nothing of a card can
tell. So such figures are predicted a second time, with their host's pace read off one of them, the first that its
source has of that card (as `python -m vgpu calibrate` would measure it).
`python -m benchmarks.published.cross_validation` takes half an hour and writes `benchmarks/results/`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
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
# So many spreads a figure may be off before it counts less; five rounds settle which ones do.
_HUBER_SPREADS, _ROUNDS = 1.5, 5
# Fitted by themselves, card by card, or nothing to fit: memory is counted.
_LEFT_OUT = ("memory peak", "program: memory peak", "multi-GPU scaling", "matmul, other cards", "AMP gain")
# Of a GPT of a billion parameters the slopes are those of so few layers, all of which are alike, in one micro-batch.
_FEW_LAYERS = {"layers": 4, "accumulate": 1}
_OF_THE_HOST = "launch-bound inference"


def main() -> Path:
    """Fit, leave out, print, write."""
    every = [*figures.load(), *as_figures.load()]
    chosen = [figure for figure in every if figure.group not in _LEFT_OUT]
    comparisons = run.run_all(chosen, say=lambda line: None)
    light = _lighter(comparisons)
    known = [*constants.fitted(), constants.pace_of_host(as_figures.SOURCE)]
    slopes = numpy.stack([_slopes(light, constant) for constant in known], axis=1)
    errors = numpy.array([math.log(comparison.ratio) for comparison in comparisons])
    priors = numpy.array([math.log(constant.prior) for constant in known])
    unseen = _predictions(comparisons, slopes, errors, priors)
    rows = _rows(comparisons, errors, unseen)
    for group, count, fitted, left_out in rows:
        print(f"{group:28} {count:3} figures, fitted {fitted:6.1%}, source left out {left_out:6.1%}")
    groups = {name: {"figures": count, "fitted": fitted, "left_out": out} for name, count, fitted, out in rows}
    return save("published_cross_validation", {"constants": [constant.name for constant in known], "groups": groups})


def _lighter(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same, with large models replaced by ones that are quick to run."""
    large = [comparison.figure for comparison in comparisons if comparison.figure.workload == "gpt_tokens"]
    smaller = [replace(figure, sizes={**figure.sizes, **_FEW_LAYERS}) for figure in large]
    again = {comparison.figure.id: comparison for comparison in run.run_all(smaller, say=lambda line: None)}
    return [again.get(comparison.figure.id, comparison) for comparison in comparisons]


def _slopes(comparisons: Sequence[Comparison], constant: constants.Constant) -> Array:
    touched = [comparison.figure for comparison in comparisons if constant.touches(comparison.figure)]
    with constant.scaled(_STEP):
        again = {comparison.figure.id: comparison.ratio for comparison in run.run_all(touched, say=lambda line: None)}
    return numpy.array(
        [
            math.log(again.get(comparison.figure.id, comparison.ratio) / comparison.ratio) / math.log(_STEP)
            for comparison in comparisons
        ]
    )


def _predictions(comparisons: Sequence[Comparison], slopes: Array, errors: Array, priors: Array) -> Array:
    """Errors (log ratio) of each figure with the constants fitted to all sources but its own."""
    unseen = numpy.empty_like(errors)
    for publisher in {comparison.figure.publisher for comparison in comparisons}:
        own = numpy.array([comparison.figure.publisher == publisher for comparison in comparisons])
        unseen[own] = errors[own] + slopes[own] @ _fit(slopes[~own], errors[~own], priors)
    return unseen


def _fit(slopes: Array, errors: Array, priors: Array) -> Array:
    """By what factors (logarithms) to change the constants."""
    change, counts = numpy.zeros_like(priors), numpy.ones_like(errors)
    for _ in range(_ROUNDS):
        weighted = slopes.T * (counts / _FIGURE_SPREAD**2)
        normal = weighted @ slopes + numpy.eye(len(priors)) / _PRIOR_SPREAD**2
        change[:] = numpy.linalg.solve(normal, priors / _PRIOR_SPREAD**2 - weighted @ errors)
        off = numpy.abs(errors + slopes @ change) / _FIGURE_SPREAD
        counts = numpy.minimum(1.0, _HUBER_SPREADS / numpy.maximum(off, 1e-9))
    return change


def _rows(comparisons: Sequence[Comparison], errors: Array, unseen: Array) -> list[tuple[str, int, float, float]]:
    groups: dict[str, list[int]] = {}
    for index, comparison in enumerate(comparisons):
        groups.setdefault(comparison.figure.group, []).append(index)
    own = [index for index, comparison in enumerate(comparisons) if comparison.figure.source == as_figures.SOURCE]
    knowing, paced = _with_their_host(comparisons, unseen)
    groups["all published"] = [index for index in range(len(comparisons)) if index not in own]
    groups["all programs on a card of ours"] = own
    groups["all"] = list(range(len(comparisons)))

    def median(values: Array, places: list[int]) -> float:
        return statistics.median(abs(math.expm1(values[place])) for place in places)

    rows = [(name, len(places), median(errors, places), median(unseen, places)) for name, places in groups.items()]
    others = [index for index, comparison in enumerate(comparisons) if comparison.figure.group != _OF_THE_HOST]
    known = {f"{_OF_THE_HOST}, its host known": paced, "all, hosts known": [*others, *paced]}
    return [
        *rows,
        *((name, len(places), median(errors, places), median(knowing, places)) for name, places in known.items()),
    ]


def _with_their_host(comparisons: Sequence[Comparison], unseen: Array) -> tuple[Array, list[int]]:
    """Errors of what the host bounds once its pace is that of its source's first figure of that card; of all others."""
    knowing, first = unseen.copy(), dict[tuple[str, str], int]()
    paced = []
    for index, comparison in enumerate(comparisons):
        if comparison.figure.group != _OF_THE_HOST:
            continue
        known = first.setdefault((comparison.figure.publisher, comparison.figure.gpu), index)
        if known != index:
            knowing[index] -= unseen[known]
            paced.append(index)
    return knowing, paced


if __name__ == "__main__":
    main()
