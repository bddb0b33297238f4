"""What causal attention comes to with a mistake in its mask, so that a mistake can be recognised by its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import Cause
from grader.lab4.truth.reference import attention

_CORNER = "query i sees key j if j <= i + keys - queries"

ONE_TOO_MANY = Cause("one_key_too_many", f"each query sees one key too many: {_CORNER}")
ONE_TOO_FEW = Cause("one_key_too_few", f"each query sees one key too few: {_CORNER}")
OTHER_CORNER = Cause(
    "mask_from_the_other_corner",
    f"the mask begins at the first query and key, as PyTorch's is_causal does: {_CORNER}",
)
NOT_A_NUMBER = Cause("nothing_seen_is_nan", "a query that sees no key has an output of 0: it divides 0 by 0, or worse")


def shift_of(cause: Cause, queries: int, keys: int) -> int:
    """How many keys more each query sees with this mistake."""
    return {ONE_TOO_MANY.name: 1, ONE_TOO_FEW.name: -1, OTHER_CORNER.name: queries - keys}.get(cause.name, 0)


CAUSES = (ONE_TOO_MANY, ONE_TOO_FEW, OTHER_CORNER, NOT_A_NUMBER)


def of_outputs(calls: Sequence[Mapping[str, Any]], error: float) -> Cause | None:
    """The mistake that explains all outputs, each with the operands that led to it, to within `error` of its largest.

    A call is `query`, `key`, `value`, `causal` and the `output` that was seen.
    """
    finite = all(np.isfinite(call["output"]).all() for call in calls)
    return next((one for one in _possible(finite) if all(_explains(one, call, error) for call in calls)), None)


def _possible(finite: bool) -> tuple[Cause, ...]:
    """The mistakes that there may be, where all numbers are finite or some are none."""
    return tuple(cause for cause in CAUSES if (cause is NOT_A_NUMBER) != finite)


def _explains(cause: Cause, call: Mapping[str, Any], error: float) -> bool:
    queries, keys = call["query"].shape[-2], call["key"].shape[-2]
    wanted = attention(
        call["query"],
        call["key"],
        call["value"],
        None,
        causal=call["causal"],
        shift=shift_of(cause, queries, keys) if call["causal"] else 0,
    )["output"]
    told = np.asarray(call["output"], dtype=np.float64)
    if told.shape != wanted.shape:
        return False
    if cause is NOT_A_NUMBER and call["causal"]:
        told = told[..., max(0, queries - keys) :, :]
        wanted = wanted[..., max(0, queries - keys) :, :]
    return bool((np.abs(told - wanted) <= error * max(1e-30, float(np.abs(wanted).max()))).all())


def of_influence(moved: Sequence[tuple[Mapping[str, int], NDArray[np.float64]]]) -> Cause | None:
    """The mistake that explains which queries a changed key moves: each case, and how far each query's output moved."""
    finite = all(np.isfinite(far).all() for _, far in moved)
    return next((one for one in _possible(finite) if all(_reaches(one, case, far) for case, far in moved)), None)


def _reaches(cause: Cause, case: Mapping[str, int], far: NDArray[np.float64]) -> bool:
    queries, keys = case["queries"], case["keys"]
    last_seen = np.arange(queries) + keys - queries + shift_of(cause, queries, keys)
    sees = last_seen >= case["changed"]
    if cause is NOT_A_NUMBER:
        blind = last_seen < 0
        sees, far = sees[~blind], far[~blind]
    return bool((far[~sees] <= 1e-9).all() and (far[sees] >= 1e-6).all())
