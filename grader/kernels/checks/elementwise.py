"""Judges the sum of two vectors and the fused softmax: values, what programs reach, and each byte moved once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import mebibytes, require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.kernels.checks.common import SECTOR, ask, hint_for, judge_refusals, require_inside, require_kernel
from grader.kernels.truth.reference import rounded, softmax

# A sum of two numbers is rounded once: half of the distance between neighbours, and a little more.
_ADDED = {"float32": 2.0**-23, "float16": 2.0**-10}
# Relative to each weight, and absolute. Measured: float32 1e-6, with values of some hundred 2e-5. In float16 the result
# is rounded, by 4.9e-4 at most, and nothing else; in 16 bits exponentials are as well. The least normal number is 6e-5.
_WEIGHTS = {"float32": (5e-5, 1e-12), "float16": (5.5e-4, 6e-8)}
_FAR_BELOW = 0.2
"""Relative, for values of some hundred thousand: x * log2(e) - largest * log2(e), as `exp2` wants it, is off by 0.06 of
each weight. Where the mask is the largest, all weights are 0."""
_ONCE = 1.15
"""Times the least bytes. Programs whose elements begin within a sector share it: up to 64 bytes for each, of 1 KiB and
more; an element that is read a second time costs 1.3 and more."""


@criterion("kernels.add")
class TestVectorAdd:
    def test_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        """Adds vectors of any length, type and shape."""
        cases: list[dict[str, Any]] = [
            {"shape": [generator.odd(4801, 5501)], "dtype": "float32", "layout": "plain"},
            {"shape": [generator.odd(801, 1201)], "dtype": "float32", "layout": "view"},
            {"shape": [generator.integer(2, 9), generator.odd(33, 99)], "dtype": "float16", "layout": "plain"},
            {"shape": [generator.odd(201, 399)], "dtype": "float16", "layout": "view"},
            {"shape": [8192], "dtype": "float16", "layout": "view"},
            {"shape": [1], "dtype": "float32", "layout": "plain"},
            {"shape": [0], "dtype": "float32", "layout": "plain"},
            {"shape": [3, generator.odd(5, 9), 7], "dtype": "float32", "layout": "plain"},
        ]
        x, y = generator.normal(8192), generator.normal(8192)
        seen = ask(submission, "elementwise.add", cases=cases, x=x, y=y)
        for index, (case, run) in enumerate(zip(cases, seen.whole("runs"), strict=True)):
            what = f"vector_add() of {case['shape']} {case['dtype']}" + ", a view" * (case["layout"] == "view")
            count, dtype = math.prod(case["shape"]), case["dtype"]
            require_equal([run["shape"], run["dtype"]], [case["shape"], dtype], what=f"{what}: shape and dtype")
            require(run["unchanged"], f"{what} changed its operands", "the result is a new tensor")
            if index == 0:
                require_kernel(run, what, submission)
            left, right = (rounded(one[:count], dtype).astype(np.float64) for one in (x, y))
            require_arrays_close(
                np.asarray(run["output"]).reshape(-1),
                left + right,
                rtol=_ADDED[dtype],
                atol=1e-30,
                what=what,
                hint=hint_for(run["output"], "which elements are those of the last program, and which of the first?"),
            )

    @requires("equals_reference")
    def test_stays_inside(self, submission: Submission, generator: InputGenerator) -> None:
        """Reaches no element beyond the end."""
        for case, run in _counted_sums(submission, generator):
            require_inside(run["runs"], f"vector_add() of {case['shape'][0]} elements")

    @requires("equals_reference")
    def test_each_byte_moved_once(self, submission: Submission, generator: InputGenerator) -> None:
        """Moves each byte once, in one launch."""
        for case, run in _counted_sums(submission, generator):
            _require_once(
                run, f"vector_add() of {case['shape'][0]} elements", 8 * case["shape"][0], case["shape"][0] * 4
            )

    def test_nonsense_refused(self, submission: Submission) -> None:
        """Refuses arguments that make no sense."""
        judge_refusals(submission, "add")


@criterion("kernels.softmax")
class TestSoftmax:
    def test_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes the softmax of rows of any width."""
        plain: dict[str, Any] = {"layout": "plain", "factor": 1.0, "shift": 0.0, "hidden": 0, "dtype": "float32"}
        cases: list[dict[str, Any]] = [
            {**plain, "rows": generator.odd(5, 9), "columns": generator.odd(101, 499)},
            {**plain, "rows": generator.odd(5, 9), "columns": generator.odd(101, 499), "layout": "view"},
            {**plain, "rows": 3, "columns": generator.odd(601, 999), "factor": 100.0},
            # Where a zero beyond the row is the largest, nothing of the row is left.
            {**plain, "rows": 3, "columns": generator.odd(261, 399), "shift": -generator.uniform(250, 350)},
            # Where minus ten thousand beyond the row, or a hundred thousand, is the largest.
            {
                **plain,
                "rows": 3,
                "columns": generator.odd(261, 399),
                "factor": 4.0,
                "shift": -generator.uniform(2e5, 4e5),
            },
            {**plain, "rows": 4, "columns": generator.odd(41, 99), "factor": -100.0, "dtype": "float16"},
            {**plain, "rows": 3, "columns": 256, "hidden": generator.integer(3, 250), "layout": "view"},
            {**plain, "rows": 3, "columns": generator.odd(2051, 4001), "dtype": "float16"},
            {**plain, "rows": 3, "columns": generator.odd(41, 99), "dtype": "float16", "layout": "view"},
            {**plain, "rows": 5, "columns": 1},
        ]
        x = generator.normal(9, 4001)
        seen = ask(submission, "elementwise.softmax", cases=cases, x=x)
        for index, (case, run) in enumerate(zip(cases, seen.whole("runs"), strict=True)):
            rows, columns, dtype = case["rows"], case["columns"], case["dtype"]
            what = f"softmax() of [{rows}, {columns}] {dtype}"
            what += ", rows of a wider matrix" * (case["layout"] == "view")
            what += ", values of some hundred" * (abs(case["factor"]) > 10)
            what += f", all values about {case['shift']:,.0f}" * (case["shift"] != 0)
            what += f", the first {case['hidden']} columns minus infinity" if case["hidden"] else ""
            require_equal([run["shape"], run["dtype"]], [[rows, columns], dtype], what=f"{what}: shape and dtype")
            require(run["contiguous"], f"{what}: the result is not contiguous")
            require(run["unchanged"], f"{what} changed its matrix", "the result is a new tensor")
            if index == 0:
                require_kernel(run, what, submission)
            values = x[:rows, :columns] * np.float32(case["factor"]) + np.float32(case["shift"])
            values = rounded(values.astype(np.float32), dtype)
            values = values.astype(np.float64)
            values[:, : case["hidden"]] = -np.inf
            require_arrays_close(
                run["output"],
                softmax(values),
                rtol=_FAR_BELOW if case["shift"] < -1e4 else _WEIGHTS[dtype][0],
                atol=_WEIGHTS[dtype][1],
                what=what,
                hint=hint_for(
                    run["output"],
                    "the largest of the row first, then the sum of exponentials; beyond the row nothing adds",
                ),
            )

    @requires("equals_reference")
    def test_stays_inside(self, submission: Submission, generator: InputGenerator) -> None:
        """Reaches no element beyond the end."""
        for case, run in _counted_rows(submission, generator):
            require_inside(run["runs"], f"softmax() of [{case['rows']}, {case['columns']}]")

    @requires("equals_reference")
    def test_each_byte_moved_once(self, submission: Submission, generator: InputGenerator) -> None:
        """Moves each byte once, in one launch."""
        for case, run in _counted_rows(submission, generator):
            least = 4 * case["rows"] * case["columns"]
            _require_once(run, f"softmax() of [{case['rows']}, {case['columns']}]", least, least)

    def test_nonsense_refused(self, submission: Submission) -> None:
        """Refuses arguments that make no sense."""
        judge_refusals(submission, "softmax")


def _counted_sums(submission: Submission, generator: InputGenerator) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
    generator = generator.shared("kernels.add.counted")
    cases = [{"shape": [generator.odd(40_001, 60_001)], "dtype": "float32", "layout": "plain"}]
    x, y = generator.normal(60_001), generator.normal(60_001)
    seen = ask(submission, "elementwise.add", counted=True, cases=cases, x=x, y=y)
    return list(zip(cases, seen.runs, strict=True))


def _counted_rows(submission: Submission, generator: InputGenerator) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
    generator = generator.shared("kernels.softmax.counted")
    one = {"layout": "plain", "factor": 1.0, "hidden": 0, "dtype": "float32"}
    cases: Sequence[dict[str, Any]] = [{**one, "rows": generator.integer(21, 29), "columns": generator.odd(1301, 1901)}]
    seen = ask(submission, "elementwise.softmax", counted=True, cases=cases, x=generator.normal(29, 1901))
    return list(zip(cases, seen.runs, strict=True))


def _require_once(run: Mapping[str, Any], what: str, read: int, written: int) -> None:
    require(
        len(run["runs"]) == 1 and len(run["kernels"]) == 1,
        f"{what}: the GPU ran {', '.join(run['kernels']) or 'nothing'}, expected one kernel",
        "all of it in one launch: no copies, no fills, no second kernel",
    )
    (one,) = run["runs"]
    for name, seen, least in (("read", one["read_bytes"], read), ("written", one["written_bytes"], written)):
        slack = 2 * SECTOR * min(one["programs"], least // 1024)
        require(
            seen <= _ONCE * least + slack,
            f"{what}: {mebibytes(seen)} are {name}, expected {mebibytes(least)}",
            "neighbours belong to one program, each element to one only: memory moves in sectors of 32 bytes",
        )
