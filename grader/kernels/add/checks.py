"""Judges the sum of two vectors: values, what programs reach, and each byte moved once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.kernels.add.cases import Case, Inputs, Run, lengths_types_and_shapes, long_vectors
from grader.kernels.add.reference import total
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

# A sum of two numbers is rounded once: half of the distance between neighbours, and a little more.
_ADDED = {"float32": 2.0**-23, "float16": 2.0**-10}


@criterion("kernels.add")
class TestVectorAdd:
    def test_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = lengths_types_and_shapes(generator)
        runs = _runs(submission, inputs)
        for case, run in zip(inputs["cases"], runs, strict=True):
            what = f"vector_add() of {case['shape']} {case['dtype']}" + ", a view" * (case["layout"] == "view")
            require_equal([run["shape"], run["dtype"]], [case["shape"], case["dtype"]], what=f"{what}: shape and dtype")
            require(run["unchanged"], f"{what} changed its operands", "the result is a new tensor")
            require_kernel(run, what, submission)
            require_no_library(run, what)
            _require_total(inputs, case, run, what)

    @requires("equals_reference")
    def test_stays_inside(self, submission: Submission, generator: InputGenerator) -> None:
        for count, run in _counted(submission, generator):
            require_inside(run["runs"], f"vector_add() of {count} elements")

    @requires("equals_reference")
    def test_each_byte_moved_once(self, submission: Submission, generator: InputGenerator) -> None:
        for count, run in _counted(submission, generator):
            what = f"vector_add() of {count} elements"
            require_once(run, what, read=8 * count, written=4 * count)
            inputs = long_vectors(generator)
            require_loaded(
                run, {name: values[:count] for name, values in (("x", inputs["x"]), ("y", inputs["y"]))}, what
            )
            require_kernel(run, what, submission)

    def test_nonsense_refused(self, submission: Submission) -> None:
        judge_refusals(submission, "kernels.add.refusals")


def _runs(submission: Submission, inputs: Inputs, *, counted: bool = False) -> list[Run]:
    runs: list[Run] = ask(submission, "kernels.add.vector_add", counted=counted, **inputs).whole("runs")
    return runs


def _counted(submission: Submission, generator: InputGenerator) -> Iterator[tuple[int, Run]]:
    """Numbers of elements, and what happened; fails unless the sums are right that were counted."""
    inputs = long_vectors(generator)
    for case, run in zip(inputs["cases"], _runs(submission, inputs, counted=True), strict=True):
        _require_total(inputs, case, run, f"vector_add() of {case['shape'][0]} elements")
        yield case["shape"][0], run


def _require_total(inputs: Inputs, case: Case, run: Run, what: str) -> None:
    require_arrays_close(
        np.asarray(run["output"]).reshape(-1),
        total(inputs, case),
        rtol=_ADDED[case["dtype"]],
        atol=1e-30,
        what=what,
        hint=hint_for(run["output"], "which elements are those of the last program, and which of the first?"),
    )
