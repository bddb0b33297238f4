"""Judges flash attention: values and gradients, nothing quadratic, hidden tiles left out, no race between programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import CheckFailed, mebibytes, require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.kernels.checks.common import (
    ask,
    hint_for,
    judge_refusals,
    require_inside,
    require_kernel,
    require_no_race,
)
from grader.kernels.truth.reference import attention, rounded

# Of the largest value that is expected. Measured: float32 1e-6, float16 1e-3.
_TOLERANCE = {"float32": 2e-5, "float16": 6e-3}
_OPERANDS = ("q", "k", "v", "gradient")
_LONG, _WIDTH = 512, 32
"""Of the attention whose operations are counted: with tiles of 128, as large as they come, a causal mask leaves 10 of
16 tiles."""
_SEEN = 0.75
"""Share of the operations that a causal mask may leave. Measured: tiles of 64 0.56, of 128 0.63; all of them 1."""
_KERNELS = 12
"""Of a backward pass, at most: two or three of one's own, preparations, casts and fills."""


@criterion("kernels.attention")
class TestAttention:
    def test_forward_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes the output right."""
        operands, cases, runs = _values(submission, generator)
        for index, (case, run) in enumerate(zip(cases, runs, strict=True)):
            what = _what(case)
            forward = run["forward"]
            require_equal(forward["dtype"], case["dtype"], what=f"{what}: dtype of the output")
            require(run["unchanged"], f"{what} changed its operands", "nothing in place on what was given")
            if index == 0:
                require_kernel(forward, what, submission)
            _require_full_precision(forward["runs"], what)
            _require_close(forward["output"], _truth(operands, case)["output"], case, f"{what}: output")

    @builds_on("forward_equals_reference")
    def test_backward_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes the gradients right."""
        operands, cases, runs = _values(submission, generator)
        for case, run in zip(cases, runs, strict=True):
            if not case["backward"]:
                continue
            if why := run.get("no_gradients"):
                raise CheckFailed(
                    f"{_what(case)}: there are no gradients: {why}",
                    "Task 6.5: backward of a torch.autograd.Function returns a gradient for each tensor of forward",
                    answered=False,
                )
            _require_full_precision(run["backward"]["runs"], f"{_what(case)}, backward")
            truth = _truth(operands, case)
            for name in ("d_value", "d_key", "d_query"):
                summed = ", the gradient of a sum" if case["summed"] else ""
                _require_close(run[name], truth[name], case, f"{_what(case)}{summed}: {name}")

    @requires("forward_equals_reference", "backward_equals_reference")
    def test_stays_inside(self, submission: Submission, generator: InputGenerator) -> None:
        """Reaches no element outside of its tensors."""
        for case, run in _counted(submission, generator):
            for part in ("forward", "backward"):
                require_inside(run[part]["runs"], f"{_what(case)}, {part}")

    @requires("forward_equals_reference", "backward_equals_reference")
    def test_nothing_square_moved(self, submission: Submission, generator: InputGenerator) -> None:
        """Makes and moves nothing as large as all scores."""
        long = _counted(submission, generator)[-1]
        case, run = long
        require(
            len(run["forward"]["runs"]) == 1,
            f"{_what(case)}: forward launched {len(run['forward']['runs'])} Triton kernels, expected 1",
            "the loop over tiles belongs into the kernel",
        )
        require(
            bool(run["backward"]["runs"]) and len(run["backward"]["kernels"]) <= _KERNELS,
            f"{_what(case)}: backward ran {len(run['backward']['kernels'])} kernels, {len(run['backward']['runs'])} of "
            f"them Triton's, expected {_KERNELS} at most, and some of Triton's",
            "the loops over tiles belong into the kernels",
        )
        length = generator.odd(1001, 1101)
        seen = ask(submission, "attention.memory", counted=True, length=length, width=16, causal=False)
        # Measured: 0.2 of all scores, for output, gradients and sums.
        require(
            seen.added_bytes < 0.5 * 4 * length**2,
            f"flash_attention(), {length} queries, one head: forward and backward add {mebibytes(seen.added_bytes)}, "
            f"and all scores are {mebibytes(4 * length**2)}",
            "no tensor of all scores, weights or masks; what backward needs of a tile is computed again there",
        )

    @requires("forward_equals_reference", "backward_equals_reference")
    def test_hidden_tiles_left_out(self, submission: Submission, generator: InputGenerator) -> None:
        """Leaves out tiles that no query sees."""
        (whole_case, whole), (causal_case, causal) = _counted(submission, generator)[1:]
        pair = 2 * _LONG**2 * _WIDTH
        for part, least, most in (("forward", 2, 3), ("backward", 5, 8)):
            done, left = (sum(run["flops"] for run in one[part]["runs"]) for one in (whole, causal))
            require(
                least * pair <= done <= most * pair,
                f"{_what(whole_case)}, {part}: {done:.4g} FLOPs in tl.dot, expected {least} to {most} products of "
                f"{_LONG} x {_LONG} x {_WIDTH}, {pair:.4g} each",
                "forward multiplies a tile twice; backward computes it again and multiplies it by four gradients",
            )
            require(
                left <= _SEEN * done,
                f"{_what(causal_case)}, {part}: {left / done:.0%} of the FLOPs without a mask, expected {_SEEN:.0%} at "
                "most",
                "where does the loop of a tile of queries end, and where does that of a tile of keys begin?",
            )

    @requires("forward_equals_reference", "backward_equals_reference")
    def test_no_race_between_programs(self, submission: Submission, generator: InputGenerator) -> None:
        """Lets no two programs of a launch race."""
        for case, run in _counted(submission, generator):
            for part in ("forward", "backward"):
                require_no_race(run[part]["runs"], f"{_what(case)}, {part}")

    def test_nonsense_refused(self, submission: Submission) -> None:
        """Refuses arguments that make no sense."""
        judge_refusals(submission, "attention")


_PLAIN: dict[str, Any] = {
    "batch": 1, "heads": 1, "width": 16, "dtype": "float32", "causal": False, "factor": 1.0, "transposed": False,
    "summed": False, "backward": True,
}  # fmt: skip


def _values(
    submission: Submission, generator: InputGenerator
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Operands, cases and what was seen: forward and backward are judged of the same calls."""
    generator = generator.shared("kernels.attention.values")
    short, long = generator.odd(5, 15), generator.odd(131, 147)
    cases: list[dict[str, Any]] = [
        {**_PLAIN, "length": long, "causal": True},
        {**_PLAIN, "length": generator.odd(65, 99), "batch": 2, "heads": 2, "width": 32, "transposed": True},
        {
            **_PLAIN,
            "length": generator.odd(65, 99),
            "width": 64,
            "dtype": "float16",
            "causal": True,
            "transposed": True,
        },
        {**_PLAIN, "length": short, "heads": 2, "causal": generator.integer(0, 1) == 1, "summed": True},
        {**_PLAIN, "length": 64, "width": 128, "factor": 100.0, "backward": False},
        {**_PLAIN, "length": 128, "causal": True, "heads": 2, "dtype": "float16", "backward": False},
        {**_PLAIN, "length": 1, "causal": True},
    ]
    operands: dict[str, Any] = {name: generator.normal(2, 2, 147, 128) for name in _OPERANDS}
    seen = ask(submission, "attention.attend", cases=cases, **operands)
    return operands, cases, seen.whole("runs")


def _counted(submission: Submission, generator: InputGenerator) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
    """An odd length, and a long one without and with a mask."""
    generator = generator.shared("kernels.attention.counted")
    cases: list[dict[str, Any]] = [
        {**_PLAIN, "length": generator.odd(67, 99), "heads": 2, "causal": True},
        {**_PLAIN, "length": _LONG, "width": _WIDTH},
        {**_PLAIN, "length": _LONG, "width": _WIDTH, "causal": True},
    ]
    operands: dict[str, Any] = {name: generator.normal(1, 2, _LONG, _WIDTH) for name in _OPERANDS}
    seen = ask(submission, "attention.attend", counted=True, cases=cases, **operands)
    return list(zip(cases, seen.runs, strict=True))


def _truth(operands: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, Any]:
    cut = np.s_[: case["batch"], : case["heads"], : case["length"], : case["width"]]
    factor = np.float32(case["factor"])
    q, k, v, gradient = (
        rounded((operands[name][cut] * (factor if name == "q" else np.float32(1))).astype(np.float32), case["dtype"])
        for name in _OPERANDS
    )
    return attention(q, k, v, np.ones_like(gradient) if case["summed"] else gradient, causal=case["causal"])


def _what(case: Mapping[str, Any]) -> str:
    shape = [case["batch"], case["heads"], case["length"], case["width"]]
    more = ", causal" * case["causal"] + ", transposed views" * case["transposed"]
    more += ", scores of some hundred" * (case["factor"] > 1)
    return f"flash_attention() of {shape} {case['dtype']}{more}"


def _require_full_precision(runs: Iterable[Mapping[str, Any]], what: str) -> None:
    require(
        not any(run["tf32"] for run in runs),
        f"{what}: float32 may be multiplied in TF32",
        'tl.dot(..., input_precision="ieee"): its default rounds the operands to 10 bits where a card has TF32',
    )


def _require_close(seen: Any, truth: Any, case: Mapping[str, Any], what: str) -> None:
    # Of a softmax that is 1 for one key, gradients are differences of terms as large as the output's gradient.
    largest = max(float(np.abs(truth).max()), 0.1)
    atol = _TOLERANCE[case["dtype"]] * largest * (20 if case["factor"] > 1 else 1)
    require_arrays_close(
        seen,
        truth,
        rtol=0,
        atol=atol,
        what=what,
        hint=hint_for(
            seen, "compare tile by tile with softmax(Q K^T / sqrt(head_dim)) V of a length below one tile, then above"
        ),
    )
