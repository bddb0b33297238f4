"""What plain statistics make of the same kernels: the nearest neighbour, and boosted trees. No physics in either.

They see what a kernel moves and computes, its type, its layout, and which group it is of. Trees need scikit-learn,
which is no dependency of the project.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy
from numpy.typing import NDArray

from benchmarks.measured.captured import Kernel

Array = NDArray[numpy.float64]
Baseline = Callable[[Array, Array, Array], Array]
"""From features and logarithms of seconds of known kernels, and features of others: their logarithms of seconds."""
_OTHER_GROUP = 2.0
"""As far as a factor of seven in one size."""


def features(kernels: Sequence[Kernel]) -> Array:
    """A row for each kernel: logarithms of bytes, FLOPs, elements and kernels, its flags, its group's number."""
    groups = {name: number for number, name in enumerate(dict.fromkeys(kernel.group for kernel in kernels))}
    rows = []
    for kernel in kernels:
        works = [piece.work for piece in kernel.pieces]
        elements = max([math.prod(shape) for work in works for shape in work.shapes], default=1)
        rows.append(
            [
                math.log(sum(work.bytes for work in works) + 1),
                math.log(sum(work.flops for work in works) + 1),
                math.log(elements + 1),
                math.log(len(works) + 1),
                float(any("16" in work.dtype for work in works)),
                float(any(work.tf32 for work in works)),
                float("NHWC" in kernel.group + kernel.name),
                float("backward" in kernel.group),
                float(groups[kernel.group]),
            ]
        )
    return numpy.array(rows)


def nearest(known: Array, seconds: Array, asked: Array) -> Array:
    """As the nearest known kernel, scaled by the bytes; another group is far away."""
    predicted = numpy.empty(len(asked))
    for place, row in enumerate(asked):
        away = numpy.abs(known[:, :-1] - row[:-1]).sum(axis=1) + _OTHER_GROUP * (known[:, -1] != row[-1])
        best = int(away.argmin())
        predicted[place] = seconds[best] + row[0] - known[best, 0]
    return predicted


def trees(known: Array, seconds: Array, asked: Array) -> Array:
    """Gradient-boosted trees, for seconds over bytes. Raises ImportError without scikit-learn."""
    from sklearn.ensemble import GradientBoostingRegressor  # type: ignore[import-not-found, unused-ignore]

    model = GradientBoostingRegressor(n_estimators=200, max_depth=4, learning_rate=0.1, random_state=0)
    model.fit(known, seconds - known[:, 0])
    return numpy.asarray(model.predict(asked)) + asked[:, 0]


BASELINES: Mapping[str, Baseline] = {"nearest neighbour": nearest, "boosted trees": trees}
