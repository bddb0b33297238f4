"""What training must make of the ranks' weights, whatever it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from gradebox.run.assertions import CheckFailed, require
from grader.lab3.shared.reference import Array

RTOL = 1e-9
"""Relative to the largest weight, in float64. Sums in another order differ by 1e-15; every planted mistake by 1e-3 and
more."""
_STILL = 1e-9
"""So far, relative to their length, weights move that nobody has trained."""
_SAME_WAY = 0.5
"""Cosine between two ways that weights moved. Right ones: 1; with a mistake in steps or means still nearly that."""


def require_equal_replicas(
    values: Mapping[str, Sequence[ArrayLike]], *, what: str, hint: str, rtol: float = RTOL
) -> None:
    """Fail unless the ranks ended with the same values, which are given by name, for each rank."""
    for name, of_ranks in values.items():
        first, *others = (np.asarray(value, dtype=np.float64) for value in of_ranks)
        for rank, other in enumerate(others, start=1):
            apart = float(np.abs(other - first).max())
            if not apart <= rtol * max(1.0, float(np.abs(first).max())):
                raise CheckFailed(f"{what}: {name} of rank {rank} differs from rank 0's by {apart:.3g}", hint)


def require_moved_alike(weights: Sequence[ArrayLike], start: ArrayLike, expected: Array, *, what: str) -> None:
    """Fail unless training changed every rank's weights, roughly as it should: weights that are equal because nothing
    was trained, or because they were overwritten, say nothing. How far they moved is judged elsewhere."""
    begin = np.asarray(start, dtype=np.float64)
    way = expected - begin
    for rank, weight in enumerate(weights):
        moved = np.asarray(weight, dtype=np.float64) - begin
        length = float(np.linalg.norm(moved))
        alike = float((moved * way).sum() / (length * np.linalg.norm(way))) if length else 0.0
        require(
            alike > _SAME_WAY,
            f"{what}: the weights of rank {rank} moved by {length:.3g}, and not the way that its samples lead",
            "Train the model that is passed in, in place."
            if length < _STILL * float(np.linalg.norm(begin))
            else "Do one step by hand on the samples of all ranks, and compare: is the gradient cleared in each step?",
        )
