"""Judges flash attention: values and gradients, nothing quadratic, hidden tiles left out, no race between programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import CheckFailed, mebibytes, require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.kernels.attention import cases
from grader.kernels.attention.cases import LONG, WIDTH, Case, Run
from grader.kernels.attention.reference import attention
from grader.kernels.shared.cases import Activity
from grader.kernels.shared.checks import (
    ask,
    hint_for,
    is_among,
    is_counted,
    judge_refusals,
    require_inside,
    require_kernel,
    require_launched,
    require_no_race,
)
from grader.kernels.shared.reference import Array
from grader.shared.readings import Launch

# Of the largest value that is expected. Measured: float32 1e-6, float16 1e-3.
_TOLERANCE = {"float32": 2e-5, "float16": 6e-3}
_PASSES: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
_GRADIENTS: tuple[Literal["d_value", "d_key", "d_query"], ...] = ("d_value", "d_key", "d_query")
_SEEN = 0.75
"""Share of the operations that a causal mask may leave. Measured: tiles of 64 0.56, of 128 0.63; all of them 1."""
_HIDDEN = 0.95
"""Of the least that all tiles take forward: who does more than that without a mask has left tiles out with one, too."""
_STORED = 2
_KERNELS = 12
"""Of a pass, at most: two or three of one's own, preparations, casts and fills."""
_LEAST_TILE, _LITTLE = 8, 4
"""Parts of a gradient, each as large as an operand: one for each tile, or a few."""


@criterion("kernels.attention")
class TestAttention:
    def test_forward_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = cases.lengths_types_and_masks(generator)
        for case, run in _runs(submission, inputs):
            what = _what(case)
            forward = run["forward"]
            require_equal(forward["dtype"], case["dtype"], what=f"{what}: dtype of the output")
            require(run["unchanged"], f"{what} changed its operands", "nothing in place on what was given")
            if case["dtype"] == "float32":
                require_kernel(forward, what, submission)
            else:  # what is returned may be cast afterwards
                require_launched(forward, what, submission)
            _require_little_beside(forward, case, f"{what}, forward")
            _require_full_precision(forward["runs"], what)
            _require_close(forward["output"], attention(inputs, case)["output"], case, f"{what}: output")

    def test_backward_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = cases.lengths_types_and_masks(generator)
        for case, run in _runs(submission, inputs):
            if not case["backward"]:
                continue
            if why := run.get("no_gradients"):
                raise CheckFailed(
                    f"{_what(case)}: there are no gradients: {why}",
                    "Task 6.5: backward of a torch.autograd.Function returns a gradient for each tensor of forward",
                    answered=False,
                )
            require_launched(run["backward"], f"{_what(case)}, backward", submission)
            _require_little_beside(run["backward"], case, f"{_what(case)}, backward")
            _require_full_precision(run["backward"]["runs"], f"{_what(case)}, backward")
            expected = attention(inputs, case)
            stored = [stored for launch in run["backward"]["runs"] for stored in launch["stored"]]
            own = sum(is_among(run[name], stored) for name in _GRADIENTS)
            # Parts of one of them may be added up, or cast, afterwards.
            require(
                not is_counted(run["backward"], submission) or case["dtype"] != "float32" or own >= _STORED,
                f"{_what(case)}, backward: Triton kernels stored {own} of three gradients, expected {_STORED} at least",
                "the kernels of backward compute the gradients and store them",
            )
            for name in _GRADIENTS:
                summed = ", the gradient of a sum" if case["summed"] else ""
                _require_close(run[name], expected[name], case, f"{_what(case)}{summed}: {name}")

    @requires("forward_equals_reference", "backward_equals_reference")
    def test_stays_inside(self, submission: Submission, generator: InputGenerator) -> None:
        for case, run in _counted(submission, generator):
            for part in _PASSES:
                require_inside(run[part]["runs"], f"{_what(case)}, {part}")

    @requires("forward_equals_reference", "backward_equals_reference")
    def test_nothing_square_moved(self, submission: Submission, generator: InputGenerator) -> None:
        case, run = _counted(submission, generator)[-1]
        require(
            len(run["forward"]["runs"]) == 1,
            f"{_what(case)}: forward launched {len(run['forward']['runs'])} Triton kernels, expected 1",
            "the loop over tiles belongs in the kernel",
        )
        require(
            bool(run["backward"]["runs"]) and len(run["backward"]["kernels"]) <= _KERNELS,
            f"{_what(case)}: backward ran {len(run['backward']['kernels'])} kernels, {len(run['backward']['runs'])} of "
            f"them Triton's, expected {_KERNELS} at most, and some of Triton's",
            "the loops over tiles belong in the kernels",
        )
        matrix = 4 * case["batch"] * case["heads"] * case["length"] * case["width"]
        for part, read, written in zip(_PASSES, (3, 4), (1, 3), strict=True):
            runs = run[part]["runs"]
            moved = (
                ("read", sum(launch["read_bytes"] for launch in runs), read),
                ("write", sum(launch["written_bytes"] for launch in runs), written),
            )
            for does, some, least in moved:
                require(
                    some >= least * matrix,
                    f"{_what(case)}, {part}: its Triton kernels {does} {mebibytes(some)}, expected "
                    f"{mebibytes(least * matrix)} at least",
                    "forward reads Q, K and V and writes the output; backward reads its gradient as well and writes "
                    "three",
                )
        sizes = cases.one_long_head(generator)
        length = sizes["length"]
        reply = ask(submission, "kernels.attention.memory", counted=True, **sizes)
        added_bytes: int = reply.added_bytes
        # Measured: 0.2 of all scores, for output, gradients and sums.
        require(
            added_bytes < 0.5 * 4 * length**2,
            f"flash_attention(), {length} queries, one head: forward and backward add {mebibytes(added_bytes)}, "
            f"and all scores are {mebibytes(4 * length**2)}",
            "no tensor of all scores, weights or masks; what backward needs of a tile is computed again there",
        )
        products = 7 * 2 * length**2 * sizes["width"] / (2 if sizes["causal"] else 1)
        require(
            reply.flops >= products and reply.copied_bytes < 4 * length,
            f"flash_attention(), {length} queries, one head: forward and backward computed {reply.flops:.4g} FLOPs of "
            f"products on the device and copied {mebibytes(reply.copied_bytes)} to the host, expected {products:.4g} "
            "FLOPs at least and nothing copied",
            "the products belong in your kernels (tl.dot), for long sequences as for short ones",
        )

    @requires("forward_equals_reference", "backward_equals_reference")
    def test_hidden_tiles_left_out(self, submission: Submission, generator: InputGenerator) -> None:
        (whole_case, whole), (causal_case, causal) = _counted(submission, generator)[1:]
        pair = 2 * LONG**2 * WIDTH
        for part, least, most in zip(_PASSES, (2, 5), (3, 8), strict=True):
            done, left = (sum(launch["flops"] for launch in run[part]["runs"]) for run in (whole, causal))
            require(
                least * pair <= done <= most * pair,
                f"{_what(whole_case)}, {part}: {done:.4g} FLOPs in tl.dot, expected {least} to {most} products of "
                f"{LONG} x {LONG} x {WIDTH}, {pair:.4g} each",
                "forward multiplies a tile twice; backward computes it again and multiplies it by four gradients",
            )
            require(
                left <= _SEEN * done and (part == "backward" or left <= _HIDDEN * least * pair),
                f"{_what(causal_case)}, {part}: {left / done:.0%} of the FLOPs without a mask, which are "
                f"{left / pair:.3g} whole products; expected {_SEEN:.0%} at most, and forward fewer than 2 products",
                "where does the loop of a tile of queries end, and where does that of a tile of keys begin?",
            )

    @requires("forward_equals_reference", "backward_equals_reference")
    def test_no_race_between_programs(self, submission: Submission, generator: InputGenerator) -> None:
        for case, run in _counted(submission, generator):
            for part in _PASSES:
                require_no_race(run[part]["runs"], f"{_what(case)}, {part}")

    def test_nonsense_refused(self, submission: Submission) -> None:
        judge_refusals(submission, "kernels.attention.refusals")


def _require_little_beside(run: Activity, case: Case, what: str) -> None:
    """Fail if PyTorch could compute more than casts and sums: a product without a library's takes a loop, or a tensor
    with a number for each query, key and column."""
    require(
        len(run["kernels"]) <= _KERNELS,
        f"{what}: the GPU ran {len(run['kernels'])} kernels, {len(run['runs'])} of them Triton's, expected {_KERNELS} "
        "at most",
        "the loops over tiles belong in the kernels",
    )
    operand = case["batch"] * case["heads"] * case["length"] * case["width"]
    most = operand * max(case["length"] // _LEAST_TILE, _LITTLE)
    require(
        run["largest_elements"] <= most,
        f"{what}: a kernel is given a tensor of {run['largest_elements']:,} elements, expected {most:,} at most; an "
        f"operand has {operand:,}",
        "the products belong in your kernels (tl.dot); what PyTorch adds up are parts, one for each tile",
    )


def _runs(submission: Submission, inputs: cases.Inputs, *, counted: bool = False) -> list[tuple[Case, Run]]:
    runs: list[Run] = ask(submission, "kernels.attention.attend", counted=counted, **inputs).whole("runs")
    return list(zip(inputs["cases"], runs, strict=True))


def _counted(submission: Submission, generator: InputGenerator) -> list[tuple[Case, Run]]:
    """Cases and what happened; fails unless outputs and gradients are right for which it was counted."""
    inputs = cases.long_sequences(generator)
    runs = _runs(submission, inputs, counted=True)
    for case, run in runs:
        expected = attention(inputs, case)
        _require_close(run["forward"]["output"], expected["output"], case, f"{_what(case)}: output")
        if "no_gradients" not in run:
            for name in _GRADIENTS:
                _require_close(run[name], expected[name], case, f"{_what(case)}: {name}")
    return runs


def _what(case: Case) -> str:
    shape = [case["batch"], case["heads"], case["length"], case["width"]]
    more = ", causal" * case["causal"] + ", transposed views" * case["transposed"]
    more += ", scores of some hundred" * (case["factor"] > 1)
    return f"flash_attention() of {shape} {case['dtype']}{more}"


def _require_full_precision(runs: Iterable[Launch], what: str) -> None:
    require(
        not any(launch["tf32"] for launch in runs),
        f"{what}: float32 may be multiplied in TF32",
        'tl.dot(..., input_precision="ieee"): its default rounds the operands to 10 bits where a card has TF32',
    )


def _require_close(actual: Array, expected: Array, case: Case, what: str) -> None:
    # Of a softmax that is 1 for one key, gradients are differences of terms as large as the output's gradient.
    largest = max(float(np.abs(expected).max()), 0.1)
    atol = _TOLERANCE[case["dtype"]] * largest * (20 if case["factor"] > 1 else 1)
    require_arrays_close(
        actual,
        expected,
        rtol=0,
        atol=atol,
        what=what,
        hint=hint_for(
            actual, "compare tile by tile with softmax(Q K^T / sqrt(head_dim)) V of a length below one tile, then above"
        ),
    )
