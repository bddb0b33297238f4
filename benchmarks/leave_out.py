"""Leaving measurements out of a fit: halves, folds, and the error of each value that had no part in its prediction.

Not here: what is fitted (`benchmarks.measured.fitting`), and what is left out (whoever calls).
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

Array = NDArray[numpy.float64]
Predict = Callable[[list[int], list[int]], Array]
"""From the places of known values and of others: errors of the others, as logarithms of measured over predicted."""
_DRAWS, _FOLDS, _JOBS = 5, 10, 4


def halves(parts: Sequence[list[int]]) -> Iterator[list[int]]:
    """Of each draw both halves of the parts, so that every value is left out once in it."""
    for seed in range(_DRAWS):
        order = numpy.random.default_rng(seed).permutation(len(parts))
        middle = len(parts) // 2
        for half in (order[:middle], order[middle:]):
            yield sorted(index for place in half for index in parts[place])


def folds(parts: Sequence[list[int]]) -> list[list[int]]:
    """So many parts, each of several of the given ones, the same every time."""
    order = numpy.random.default_rng(0).permutation(len(parts))
    return [sorted(index for place in order[fold::_FOLDS] for index in parts[place]) for fold in range(_FOLDS)]


def by(keys: Iterable[str]) -> list[list[int]]:
    """The places of values with the same key, in the order of the keys."""
    parts: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        parts.setdefault(key, []).append(index)
    return list(parts.values())


def errors(parts: Iterable[list[int]], count: int, predict: Predict) -> Array:
    """Error of each value when a part with it was left out: the median over draws."""
    drawn: list[list[float]] = [[] for _ in range(count)]
    splits = [([index for index in range(count) if index not in set(part)], part) for part in parts]
    for (_, part), predicted in zip(splits, _in_processes(predict, splits), strict=True):
        for index, error in zip(part, predicted, strict=True):
            drawn[index].append(float(error))
    return numpy.array([statistics.median(each) for each in drawn])


def median(errors: Array) -> float:
    """The median error, the same for half as for twice."""
    return round(math.expm1(float(numpy.median(numpy.abs(errors)))), 4)


def _in_processes(predict: Predict, splits: Sequence[tuple[list[int], list[int]]]) -> list[Array]:
    """Each split's prediction; processes are forked, so that what was captured need not be sent."""
    context = multiprocessing.get_context("fork")
    pipes = []
    for job in range(_JOBS):
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(predict, splits[job::_JOBS], sending))
        process.start()
        sending.close()  # so that a process that fails ends the reading, instead of leaving it to wait
        pipes.append((process, receiving))
    predictions: list[Array] = [numpy.empty(0)] * len(splits)
    for job, (process, receiving) in enumerate(pipes):
        predictions[job::_JOBS] = receiving.recv()
        process.join()
    return predictions


def _work(predict: Predict, splits: Any, sending: Any) -> None:
    sending.send([predict(known, part) for known, part in splits])
