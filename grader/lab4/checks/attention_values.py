"""Judges the values that Lab 4's attention computes, beside a float64 reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradebox.run.assertions import Cause, recognising, require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.checks.operands import case_of, mixed_calls
from grader.lab4.truth import masks
from grader.lab4.truth.reference import attention, runs

# Of the largest value that is expected. Measured: float64 1e-15, float32 7e-7, float16 1.3e-3 and bfloat16 1.1e-2 where
# the scores are rounded to the low dtype, a third of that where they are not. A wrong scale or mask: 0.1 and more.
TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}
_LARGE_SCORES = 1e-11
"""In float64, where scores are some hundred: a weight exp(score - log-sum-exp) has the roundings of both, 1e-13 of it,
and where one weight is nearly 1 the gradients are small differences of terms as large as the output's gradient."""
LENGTHS_HINT = "query i sees key j if j <= i + keys - queries; PyTorch's is_causal counts from the other corner"
KEPT_HINT = ".to() and .float() give the operand itself where its dtype is right: nothing in place on what they give"
_TILED_BACKWARD = (
    "the output is right, and its way back is not: with weights P and dP = dO V^T, dV = P^T dO, "
    "dS = P * (dP - rowsum(dO * O)), dQ = dS K / sqrt(head_dim), dK = dS^T Q / sqrt(head_dim)"
)
_OWN_BACKWARD = "the output is right, and its gradient is not: what is changed in place, or detached, on the way?"
_LARGE_SCORES_32 = 20
"""Times the tolerance of float32: such scores have an error of 1e-4, and so have weights; outputs 1.7e-5 at most."""
_OF = {"d_query": "Q", "d_key": "K", "d_value": "V"}
_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half the distance of two neighbouring numbers, as a share of them at most."""
_ROUNDINGS = 1.3
"""Error of tiled attention's output, in roundings of the truth. Measured: 0.6 to 0.8; 1.8 and more where tiles of three
keys are added up in 16 bits. Not of gradients, which autograd may add up by itself."""


def judge(
    submission: Submission,
    generator: InputGenerator,
    function: str,
    calls: list[dict[str, Any]],
    *,
    causal: bool | None = None,
) -> None:
    """Compare `function` with the reference for each call, and for some in which all that calls differ in meets.

    With `causal`, only for the calls that are, or that are not: those have the arguments of the document alone.
    """
    case = case_of(generator)
    calls = [call for call in [*calls, *mixed_calls(generator, function)] if causal is None or call["causal"] == causal]
    for call in calls:
        call.setdefault("transposed", generator.integer(0, 1) == 1)
    seen = runs(submission.numeric_probe("lab4.attention.attend", function=function, calls=calls, **case))
    with recognising(lambda: _mask_of(case, calls, seen)):
        _require_equal_to_reference(case, function, calls, seen)


def _operands(case: dict[str, Any], call: dict[str, Any]) -> list[Any]:
    """Query, key, value and gradient of a call."""
    many = 1 if call.get("alone") else None
    counts = {"q": call["queries"], "k": call["keys"], "v": call["keys"], "gradient": call["queries"]}
    q, k, v, gradient = (case[name][:many, :many, :count] for name, count in counts.items())
    return [q * np.float32(call.get("factor", 1)), k, v, gradient]


def distance_of(moved: Any) -> Any:
    """How far each query's output moved; where it is no number, infinitely far."""
    return np.nan_to_num(np.asarray(moved, dtype=np.float64), nan=np.inf)


def _mask_of(case: dict[str, Any], calls: list[dict[str, Any]], seen: list[dict[str, Any]]) -> Cause | None:
    """The mistake in the mask that all outputs show; judged where scores are of usual size."""
    usual = [(call, run) for call, run in zip(calls, seen, strict=True) if call.get("factor", 1) == 1]
    told = [
        dict(zip(("query", "key", "value"), _operands(case, call)[:3], strict=True))
        | {"causal": call["causal"], "output": run["output"]}
        for call, run in usual
    ]
    return masks.of_outputs(told, max(TOLERANCE[call["dtype"]] for call, _ in usual))


def _hint(function: str, call: dict[str, Any], name: str, told: Any) -> str:
    if call.get("factor", 1) > 1 and not np.isfinite(told).all():
        return "exp() of some hundred is infinite: take each query's largest score off first, which changes no weight"
    if name in _OF:  # the output was right
        return _TILED_BACKWARD if function == "tiled_attention" else _OWN_BACKWARD
    return LENGTHS_HINT if call["causal"] else "softmax(Q K^T / sqrt(head_dim)) V"


def _require_equal_to_reference(
    case: dict[str, Any], function: str, calls: list[dict[str, Any]], seen: list[dict[str, Any]]
) -> None:
    for call, run in zip(calls, seen, strict=True):
        queries, keys, dtype = call["queries"], call["keys"], call["dtype"]
        factor = call.get("factor", 1)
        q, k, v, gradient = _operands(case, call)
        expected = attention(q, k, v, gradient, causal=call["causal"])
        mask = "causal, " if call["causal"] else ""
        what = f"{function}(), {mask}{queries} queries, {keys} keys, {dtype}"
        if "block_size" in call:
            what += f", block_size {call['block_size']}"
        if factor > 1:
            what += ", scores of some hundred"
        if call.get("alone"):
            what += ", one head"
        needed = call.get("needed", "QKV")
        if needed != "QKV":
            what += f", only {' and '.join(needed)} with requires_grad"
        require_equal(run["changed"], [], what=f"{what}: operands that the call changes", hint=KEPT_HINT)
        require_equal(run["dtype"], dtype, what=f"{what}: dtype of the output")
        for name, truth in expected.items():
            if name in _OF and (_OF[name] not in needed or (factor > 1 and dtype != "float64")):
                continue  # where one weight is nearly 1, gradients are differences that roundings outweigh
            largest = float(np.abs(truth).max())
            if keys == 1:  # its weight is 1, and what should be 0 is a difference of terms as large as the gradient
                largest = max(largest, float(np.abs(gradient).max()))
            atol = TOLERANCE[dtype] * largest
            if factor > 1 and dtype == "float32":
                atol *= _LARGE_SCORES_32
            if factor > 1 and dtype == "float64":
                atol = max(atol, _LARGE_SCORES * float(np.abs(gradient).max()))
            require_arrays_close(
                run[name],
                truth,
                rtol=0,
                atol=atol,
                what=f"{what}: {name}",
                hint=_hint(function, call, name, run[name]),
            )
            if dtype in _UNIT and function == "tiled_attention" and name == "output":
                # What is computed in float32 is about as far from the truth as the truth rounded.
                rounding = np.abs(truth) * _UNIT[dtype] / 3**0.5
                ratio = float(np.sqrt(((run[name] - truth) ** 2).mean() / (rounding**2).mean()))
                require(
                    ratio < _ROUNDINGS,
                    f"{what}: {name} is {ratio:.1f} times as far from the truth as its last rounding explains",
                    "16-bit inputs are computed in float32, within a tile and in the sums over the tiles",
                )
