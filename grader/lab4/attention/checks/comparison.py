"""Compares the values that Lab 4's attention computes with a float64 reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import Cause, recognising, require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.attention.cases.draws import Operands, mixed_calls, operands
from grader.lab4.attention.cases.types import Attend, AttendRun, DrawnCall
from grader.lab4.attention.checks.masks import cause_of
from grader.lab4.attention.reference import (
    BACKWARD_MISTAKES,
    BackwardMistake,
    Observed,
    attention,
    mistake_in_outputs,
)

# Of the largest value that is expected. Measured: float64 1e-15, float32 7e-7, float16 1.3e-3 and bfloat16 1.1e-2 where
# the scores are rounded to the low dtype, a third of that where they are not. A wrong scale or mask: 0.1 and more.
TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}
_LARGE_SCORES = 1e-11
"""In float64, where scores are some hundred: a weight exp(score - log-sum-exp) has the roundings of both, 1e-13 of it,
and where one weight is nearly 1 the gradients are small differences of terms as large as the output's gradient."""
LENGTHS_HINT = "Let query i see key j if j <= i + keys - queries. PyTorch's is_causal counts from the other corner."
KEPT_HINT = (
    "Change nothing in place on what .to() and .float() give: it is the operand itself if its dtype is right already."
)
_TILED_BACKWARD = (
    "Correct the backward pass; the output is right. With weights P and dP = dO V^T: dV = P^T dO, "
    "dS = P * (dP - rowsum(dO * O)), dQ = dS K / sqrt(head_dim), dK = dS^T Q / sqrt(head_dim)."
)
_OWN_BACKWARD = "Look for what is changed in place or detached on the way: the output is right, its gradient is not."
_BACKWARD: Mapping[BackwardMistake, str] = {
    "no_second_term": "the gradient of the softmax lacks its second term, the row sum of dO * O",
    "no_scale": "the scores' gradient is not divided by the square root of head_dim",
}
_LARGE_SCORES_32 = 20
"""Times the tolerance of float32: such scores have an error of 1e-4, and so have weights; outputs 1.7e-5 at most."""
_OF = {"d_query": "Q", "d_key": "K", "d_value": "V"}
_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half the distance of two neighbouring numbers, as a share of them at most."""
_RANDOM = 1e-2
"""Between two outputs of one call, of numbers of about 1; dropout changes them by as much as they are."""
_ROUNDINGS = 1.3
"""Error of tiled attention's output, in roundings of the reference. Measured: 0.6 to 0.8; 1.8 and more if tiles of
three keys are added up in 16 bits. Not of gradients, which autograd may add up by itself."""
_POOLED_ROUNDINGS = 0.92
"""The same of all calls together, which differs less. Measured in 30 gradings: 0.70 to 0.76. If the product of weights
and values is made in 16 bits: 1.07 to 1.20; if only the weights are rounded, as in flash-attn: 0.85 to 0.89."""
_BACKWARD_ROUNDINGS, _MANY_KEYS = 1.8, 30
"""The same of the queries' gradient, of one tile with so many keys and no mask. Measured: 0.7 to 1.0, 3.1 and more if
the log-sum-exp is kept in 16 bits."""


def judge(
    submission: Submission,
    generator: InputGenerator,
    function: str,
    calls: list[DrawnCall],
    *,
    causal: bool | None = None,
) -> None:
    """Compare `function` with the reference for each call, and for some in which all that calls differ in meets.

    With `causal`, only for the calls that are, or that are not: those have the arguments of the document alone.
    """
    shared = operands(generator)
    chosen = [call for call in [*calls, *mixed_calls(generator, function)] if causal is None or call.causal == causal]
    drawn = [(call, generator.integer(0, 1) == 1) for call in chosen]
    calls = [replace(call, transposed=views) if call.transposed is None else call for call, views in drawn]
    runs = submission.numeric_probe(Attend(function=function, calls=calls, **shared)).runs
    with recognising(lambda: _cause_of(submission, function, shared, calls, runs)):
        for call, run in zip(calls, runs, strict=True):
            _require_equal_to_reference(shared, function, call, run)
        if function == "tiled_attention":
            _require_wide_tiles(shared, calls, runs)


def _operands(shared: Operands, call: DrawnCall) -> list[NDArray[np.float32]]:
    """Query, key, value and gradient of a call."""
    many = 1 if call.alone else None
    query, gradient = (array[:many, :many, : call.queries] for array in (shared["q"], shared["gradient"]))
    key, value = (array[:many, :many, : call.keys] for array in (shared["k"], shared["v"]))
    return [query * np.float32(call.factor), key, value, gradient]


def _cause_of(
    submission: Submission, function: str, shared: Operands, calls: Sequence[DrawnCall], runs: Sequence[AttendRun]
) -> Cause | None:
    """The mistake in the mask or the scale that all outputs show, or else that one call gives two different outputs.

    Judged where scores are of usual size, and in types of 32 bits and more.
    """
    usual = [
        (call, run)
        for call, run in zip(calls, runs, strict=True)
        if call.factor == 1 and call.dtype in ("float32", "float64")
    ]
    observed = []
    for call, run in usual:
        query, key, value, _ = _operands(shared, call)
        observed.append(Observed(query, key, value, call.causal, run.output, call.block_size or 0))
    mistake = mistake_in_outputs(observed, max(TOLERANCE[call.dtype] for call, _ in usual))
    if mistake is not None:
        return cause_of(mistake, function)
    in_float64 = [each for each, (call, _) in zip(observed, usual, strict=True) if call.dtype == "float64"]
    if (narrow := narrow_in(function, in_float64)) is not None:
        return narrow
    if (backward := _backward_of(function, shared, usual)) is not None:
        return backward
    plain = [replace(call, causal=causal) for call, _ in usual[:1] for causal in (False, True)]
    again = submission.numeric_probe(Attend(function=function, calls=[*plain, *plain], **shared)).runs
    pairs = zip(again[: len(plain)], again[len(plain) :], strict=True)
    random = any(float(np.abs(first.output - second.output).max()) > _RANDOM for first, second in pairs)
    if not random:
        return None
    return Cause(
        f"random output of {function}",
        "Leave dropout_p at 0: this course's attention has no dropout, in training or otherwise.",
        f"lab4.attention.{function.removesuffix('_attention')}_equals_reference",
        mistake=f"{function}() gives another output each time: dropout is on",
    )


def narrow_in(function: str, observed: Sequence[Observed]) -> Cause | None:
    """The mistake of outputs of operands in float64 that are right in the digits of float32 alone."""
    errors = []
    for call in observed:
        expected = attention(call.query, call.key, call.value, None, causal=call.causal)["output"]
        errors.append(float(np.abs(np.asarray(call.output, np.float64) - expected).max() / np.abs(expected).max()))
    if not TOLERANCE["float64"] < max(errors, default=0.0) < TOLERANCE["float32"]:
        return None
    return Cause(
        f"float64 in float32 in {function}",
        "Compute float64 inputs in float64 throughout: scores, softmax and sums. "
        "torch.promote_types(Q.dtype, torch.float32) is float32 for 16-bit inputs only.",
        f"lab4.attention.{function.removesuffix('_attention')}_equals_reference",
        mistake=f"{function}() computes a part of float64 inputs in float32",
    )


def _backward_of(function: str, shared: Operands, usual: Sequence[tuple[DrawnCall, AttendRun]]) -> Cause | None:
    """The mistake that explains the gradients of all calls that need all three."""
    whole = [(call, run) for call, run in usual if call.needed == "QKV" and call.keys > 1]

    def explains(mistake: BackwardMistake | None) -> bool:
        for call, run in whole:
            expected = attention(*_operands(shared, call), causal=call.causal, backward=mistake)
            for name, actual in (("d_query", run.d_query), ("d_key", run.d_key), ("d_value", run.d_value)):
                largest = float(np.abs(expected[name]).max())
                if not (np.abs(actual - expected[name]) <= TOLERANCE[call.dtype] * largest).all():
                    return False
        return True

    if explains(None):
        return None
    mistake = next((mistake for mistake in BACKWARD_MISTAKES if explains(mistake)), None)
    if mistake is None:
        return None
    return Cause(
        f"{mistake} in {function}",
        _TILED_BACKWARD,
        f"lab4.attention.{function.removesuffix('_attention')}_equals_reference",
        mistake=f"In the backward pass of {function}(), {_BACKWARD[mistake]}",
    )


def _hint(function: str, call: DrawnCall, name: str, actual: NDArray[np.float64]) -> str:
    if call.factor > 1 and not np.isfinite(actual).all():
        return "Take each query's largest score off before exp(): of some hundred it is infinite. No weight changes."
    if name in _OF:  # the output was right
        return _TILED_BACKWARD if function == "tiled_attention" else _OWN_BACKWARD
    return LENGTHS_HINT if call.causal else "Compute softmax(Q K^T / sqrt(head_dim)) V."


def _described(function: str, call: DrawnCall) -> str:
    mask = "causal, " if call.causal else ""
    what = f"{function}(), {mask}{call.queries} queries, {call.keys} keys, {call.dtype}"
    if call.block_size is not None:
        what += f", block_size {call.block_size}"
    if call.factor > 1:
        what += ", scores of some hundred"
    if call.alone:
        what += ", one head"
    if call.needed != "QKV":
        what += f", only {' and '.join(call.needed)} with requires_grad"
    return what


def _require_equal_to_reference(shared: Operands, function: str, call: DrawnCall, run: AttendRun) -> None:
    query, key, value, gradient = _operands(shared, call)
    what = _described(function, call)
    require_equal(run.changed, [], what=f"{what}: operands that the call changes", hint=KEPT_HINT)
    require_equal(run.dtype, call.dtype, what=f"{what}: dtype of the output")
    results = {"output": run.output, "d_query": run.d_query, "d_key": run.d_key, "d_value": run.d_value}
    for name, expected in attention(query, key, value, gradient, causal=call.causal).items():
        if name in _OF and (_OF[name] not in call.needed or (call.factor > 1 and call.dtype != "float64")):
            continue  # where one weight is nearly 1, gradients are differences that roundings outweigh
        actual = results[name]
        require_arrays_close(
            actual,
            expected,
            rtol=0,
            atol=_tolerance(call, expected, gradient),
            what=f"{what}: {name}",
            hint=_hint(function, call, name, actual),
        )
        if call.dtype in _UNIT and function == "tiled_attention" and name == "output":
            # What is computed in float32 is about as far from the reference as the reference rounded.
            ratio = _in_roundings(call, actual, expected)
            require(
                ratio < _ROUNDINGS,
                f"{what}: {name} is {ratio:.1f} times as far from the exact value as its last rounding explains",
                "Compute 16-bit inputs in float32, within a tile and in the sums over the tiles.",
            )
        if name == "d_query" and _is_one_tile(call):
            _require_wide_backward(what, call, actual, expected)


def _require_wide_tiles(shared: Operands, calls: Sequence[DrawnCall], runs: Sequence[AttendRun]) -> None:
    """Fail if outputs of 16-bit inputs, all together, have more than their own rounding."""
    squares = []
    for call, run in zip(calls, runs, strict=True):
        if call.dtype in _UNIT and call.factor == 1 and call.keys > 1:
            query, key, value, _ = _operands(shared, call)
            expected = attention(query, key, value, None, causal=call.causal)["output"]
            squares += [_in_roundings(call, run.output, expected) ** 2] * expected.size
    ratio = float(np.sqrt(np.mean(squares))) if squares else 0.0
    require(
        ratio < _POOLED_ROUNDINGS,
        f"tiled_attention(): outputs of 16-bit inputs are {ratio:.2f} times as far from the exact values as rounding "
        f"them once explains, {len(squares)} numbers of all calls together, expected less than {_POOLED_ROUNDINGS}",
        Cause(
            "tiles in 16 bits",
            "Convert Q, K, V and what is computed of them to float32 inside a tile, and multiply there. Round the "
            "output only.",
            mistake="In tiled_attention(), a product inside a tile is computed in 16 bits",
        ),
    )


def _is_one_tile(call: DrawnCall) -> bool:
    """Whether the gradient of the queries is that of a single tile of many keys in 16 bits."""
    keys = (call.block_size or 0) >= call.keys >= _MANY_KEYS
    return keys and call.dtype in _UNIT and not call.causal and call.factor == 1


def _require_wide_backward(
    what: str, call: DrawnCall, actual: NDArray[np.float64], expected: NDArray[np.float64]
) -> None:
    """Fail if more is rounded to 16 bits between forward and backward than the output."""
    ratio = _in_roundings(call, actual, expected)
    require(
        ratio < _BACKWARD_ROUNDINGS,
        f"{what}: d_query is {ratio:.1f} times as far from the exact value as its last rounding explains, although one "
        "tile has all keys: something that backward needs is kept in 16 bits",
        "Keep the log-sum-exp in float32 between forward and backward. Round only the output and the gradients.",
    )


def _in_roundings(call: DrawnCall, actual: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """How far values are from the exact ones, in what rounding the exact ones explains."""
    rounding = np.abs(expected) * _UNIT[call.dtype] / 3**0.5
    return float(np.sqrt(((actual - expected) ** 2).mean() / (rounding**2).mean()))


def _tolerance(call: DrawnCall, expected: NDArray[np.float64], gradient: NDArray[np.float32]) -> float:
    largest, of_gradient = float(np.abs(expected).max()), float(np.abs(gradient).max())
    if call.keys == 1:  # its weight is 1, and what should be 0 is a difference of terms as large as the gradient
        largest = max(largest, of_gradient)
    tolerance = TOLERANCE[call.dtype] * largest
    if call.factor > 1 and call.dtype == "float32":
        tolerance *= _LARGE_SCORES_32
    if call.factor > 1 and call.dtype == "float64":
        tolerance = max(tolerance, _LARGE_SCORES * of_gradient)
    return tolerance
