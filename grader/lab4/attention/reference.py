"""Attention in NumPy float64, right or with a mistake in its mask or scale, which is recognised by its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grader.lab4.attention.cases.types import ChangedKey

Array: TypeAlias = NDArray[np.float64]
Mistake: TypeAlias = Literal[
    "one_key_too_many",
    "one_key_too_few",
    "mask_from_the_other_corner",
    "no_mask",
    "nothing_seen_is_nan",
    "scale_forgotten",
    "scale_without_the_root",
    "keys_for_values",
]
MISTAKES: tuple[Mistake, ...] = get_args(Mistake)
"""What may be wrong with a mask, with the scale of the scores, or with what they weigh."""
BackwardMistake: TypeAlias = Literal["no_second_term", "no_scale"]
BACKWARD_MISTAKES: tuple[BackwardMistake, ...] = get_args(BackwardMistake)
"""What may be wrong with gradients, if the output is right."""
POWERS: Mapping[str, float] = {"scale_forgotten": 0.0, "scale_without_the_root": -1.0}
"""Of head_dim, in the scale of the scores."""
_SEEN_IN_VALUES_ONLY = (*POWERS, "keys_for_values")
"""Mistakes beside which each query sees what it should."""


@dataclass(frozen=True)
class Observed:
    """Operands of a call, and the output that came of them."""

    query: ArrayLike
    key: ArrayLike
    value: ArrayLike
    causal: bool
    output: ArrayLike
    block_size: int = 0
    """Keys of a tile, of which those are left out that a query sees nothing of; 0 if there are no tiles."""


def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    gradient: ArrayLike | None,
    *,
    causal: bool,
    shift: int = 0,
    block_size: int = 0,
    power: float = -0.5,
    backward: BackwardMistake | None = None,
) -> Mapping[str, Array]:
    """Output, and the gradients of query, key and value; causal is aligned to the last query and key.

    A query that sees no key has an output of 0. With a mistake, `shift` more keys are seen by each
    (except in tiles of `block_size` keys of which it should see none), scores are multiplied by another `power` of
    head_dim, or gradients lack something.
    """
    q, k, v = (np.asarray(array, dtype=np.float64) for array in (query, key, value))
    scale = q.shape[-1] ** power
    scores = q @ k.swapaxes(-1, -2) * scale
    queries, keys = scores.shape[-2:]
    if causal:
        last_seen = np.arange(queries)[:, None] + keys - queries
        visible = np.arange(keys)[None, :] <= last_seen + shift
        if block_size:
            visible &= np.arange(keys)[None, :] // block_size * block_size <= last_seen
        np.copyto(scores, -np.inf, where=~visible)
    # Of a query that sees no key the largest is no number, and its weights are 0 all the same.
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total > 0, total, 1.0)
    result = {"output": weights @ v}
    if gradient is not None:
        g = np.asarray(gradient, dtype=np.float64)
        d_weights = g @ v.swapaxes(-1, -2)
        correction = (d_weights * weights).sum(-1, keepdims=True)
        d_scores = weights * (d_weights - (0.0 if backward == "no_second_term" else correction))
        d_scores *= 1.0 if backward == "no_scale" else scale
        result |= {
            "d_query": d_scores @ k,
            "d_key": d_scores.swapaxes(-1, -2) @ q,
            "d_value": weights.swapaxes(-1, -2) @ g,
        }
    return result


def shift_of(mistake: Mistake, queries: int, keys: int) -> int:
    """How many keys more each query sees with this mistake."""
    shifts: dict[Mistake, int] = {
        "one_key_too_many": 1,
        "one_key_too_few": -1,
        "mask_from_the_other_corner": queries - keys,
        "no_mask": queries + keys,
    }
    return shifts.get(mistake, 0)


def mistake_in_outputs(calls: Sequence[Observed], error: float) -> Mistake | None:
    """The mistake that explains the outputs of all calls, to within `error` of the largest number of each.

    None if no mistake is needed: then another one shows elsewhere.
    """
    if all(_explains(None, call, error) for call in calls):
        return None
    finite = all(np.isfinite(call.output).all() for call in calls)
    whole = [replace(call, block_size=0) for call in calls]
    possible = (
        mistake
        for mistake in _possible(finite)
        if any(all(_explains(mistake, call, error) for call in observed) for observed in (whole, calls))
    )
    return next(possible, None)


def _possible(finite: bool) -> tuple[Mistake, ...]:
    """The mistakes that there may be if all numbers are finite, or if some are not."""
    return tuple(mistake for mistake in MISTAKES if (mistake == "nothing_seen_is_nan") != finite)


def _explains(mistake: Mistake | None, call: Observed, error: float) -> bool:
    queries, keys = np.shape(call.query)[-2], np.shape(call.key)[-2]
    shift = shift_of(mistake, queries, keys) if mistake and call.causal else 0
    power = POWERS.get(mistake or "", -0.5)
    value = call.key if mistake == "keys_for_values" else call.value
    expected = attention(
        call.query, call.key, value, None, causal=call.causal, shift=shift, block_size=call.block_size, power=power
    )["output"]
    actual = np.asarray(call.output, dtype=np.float64)
    if actual.shape != expected.shape:
        return False
    if mistake == "nothing_seen_is_nan" and call.causal:
        actual = actual[..., max(0, queries - keys) :, :]
        expected = expected[..., max(0, queries - keys) :, :]
    return bool((np.abs(actual - expected) <= error * max(1e-30, float(np.abs(expected).max()))).all())


def mistake_in_influence(moved: Sequence[tuple[ChangedKey, Array]]) -> Mistake | None:
    """The mistake that explains which queries a changed key moves: each case, and how far each query's output moved."""
    finite = all(np.isfinite(distance).all() for _, distance in moved)
    possible = (
        mistake
        for mistake in _possible(finite)
        if mistake not in _SEEN_IN_VALUES_ONLY and all(_reaches(mistake, case, distance) for case, distance in moved)
    )
    return next(possible, None)


def sees(case: ChangedKey, shift: int = 0) -> NDArray[np.bool_]:
    """Which queries see the changed key."""
    return np.arange(case.queries) + case.keys - case.queries + shift >= case.changed


def _reaches(mistake: Mistake, case: ChangedKey, distance: Array) -> bool:
    shift = shift_of(mistake, case.queries, case.keys)
    reached = sees(case, shift)
    if mistake == "nothing_seen_is_nan":
        blind = np.arange(case.queries) + case.keys - case.queries + shift < 0
        reached, distance = reached[~blind], distance[~blind]
    return bool((distance[~reached] <= 1e-9).all() and (distance[reached] >= 1e-6).all())
