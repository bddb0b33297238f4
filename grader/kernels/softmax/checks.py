"""Judges the fused softmax: values, what programs reach, and each byte moved once."""

from __future__ import annotations

from collections.abc import Iterator

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.kernels.shared.checks import (
    ask,
    hint_for,
    judge_refusals,
    require_inside,
    require_kernel,
    require_loaded,
    require_no_library,
    require_once,
)
from grader.kernels.softmax.cases import Case, Inputs, Run, many_columns, widths_types_and_sizes
from grader.kernels.softmax.reference import weights

# Relative to each weight, and absolute. Measured: float32 1e-6, with values of some hundred 2e-5. In float16 the result
# is rounded, by 4.9e-4 at most, and nothing else; in 16 bits exponentials are as well. The least normal number is 6e-5.
_WEIGHTS = {"float32": (5e-5, 1e-12), "float16": (5.5e-4, 6e-8)}
_FAR_BELOW = 0.2
"""Relative, for values of some hundred thousand: x * log2(e) - largest * log2(e), as `exp2` wants it, is off by 0.06 of
each weight. If the mask is the largest, all weights are 0."""


@criterion("kernels.softmax")
class TestSoftmax:
    def test_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = widths_types_and_sizes(generator)
        runs = _runs(submission, inputs)
        for case, run in zip(inputs["cases"], runs, strict=True):
            shape, dtype, what = [case["rows"], case["columns"]], case["dtype"], _what(case)
            require_equal([run["shape"], run["dtype"]], [shape, dtype], what=f"{what}: shape and dtype")
            require(run["contiguous"], f"{what}: the result is not contiguous")
            require(run["unchanged"], f"{what} changed its matrix", "the result is a new tensor")
            require_kernel(run, what, submission)
            require_no_library(run, what)
            _require_weights(inputs, case, run)

    @requires("equals_reference")
    def test_stays_inside(self, submission: Submission, generator: InputGenerator) -> None:
        for case, run in _counted(submission, generator):
            require_inside(run["runs"], f"softmax() of [{case['rows']}, {case['columns']}]")

    @requires("equals_reference")
    def test_each_byte_moved_once(self, submission: Submission, generator: InputGenerator) -> None:
        for case, run in _counted(submission, generator):
            least = 4 * case["rows"] * case["columns"]
            what = f"softmax() of [{case['rows']}, {case['columns']}]"
            require_once(run, what, read=least, written=least)
            require_loaded(run, {"x": many_columns(generator)["x"][: case["rows"], : case["columns"]]}, what)
            require_kernel(run, what, submission)

    def test_nonsense_refused(self, submission: Submission) -> None:
        judge_refusals(submission, "kernels.softmax.refusals")


def _what(case: Case) -> str:
    what = f"softmax() of [{case['rows']}, {case['columns']}] {case['dtype']}"
    what += ", rows of a wider matrix" * (case["layout"] == "view")
    what += ", values of some hundred" * (abs(case["factor"]) > 10)
    what += f", all values about {case['shift']:,.0f}" * (case["shift"] != 0)
    return what + (f", the first {case['hidden']} columns minus infinity" if case["hidden"] else "")


def _runs(submission: Submission, inputs: Inputs, *, counted: bool = False) -> list[Run]:
    runs: list[Run] = ask(submission, "kernels.softmax.softmax", counted=counted, **inputs).whole("runs")
    return runs


def _counted(submission: Submission, generator: InputGenerator) -> Iterator[tuple[Case, Run]]:
    """Cases and what happened; fails unless the weights are right for which it was counted."""
    inputs = many_columns(generator)
    for case, run in zip(inputs["cases"], _runs(submission, inputs, counted=True), strict=True):
        _require_weights(inputs, case, run)
        yield case, run


def _require_weights(inputs: Inputs, case: Case, run: Run) -> None:
    relative, absolute = _WEIGHTS[case["dtype"]]
    require_arrays_close(
        run["output"],
        weights(inputs, case),
        rtol=_FAR_BELOW if case["shift"] < -1e4 else relative,
        atol=absolute,
        what=_what(case),
        hint=hint_for(
            run["output"],
            "the largest of the row first, then the sum of exponentials; beyond the row nothing adds",
        ),
    )
