"""Probes of the sum of two vectors and of the softmax: results, and what the kernels did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from grader.kernels.probes.watching import laid_out, observe, unchanged


def add(student: Any, *, cases: Sequence[dict[str, Any]], x: Tensor, y: Tensor) -> dict[str, Any]:
    """`vector_add` of the first elements of `x` and `y`, for each case: `shape`, `dtype` and `layout`."""
    function = student.module("kernels_exercise.vector_add").vector_add
    runs = []
    for case in cases:
        count = 1
        for side in case["shape"]:
            count *= side
        layout = case["layout"]
        left, right = (laid_out(one[:count], case["dtype"], student.device, layout) for one in (x, y))
        left, right = left.view(case["shape"]), right.view(case["shape"])
        before = [left.clone(), right.clone()]
        run = observe(student, lambda: function(left, right), "vector_add()")  # noqa: B023
        runs.append({**run, "unchanged": unchanged(before, [left, right])})
    return {"runs": runs}


def softmax(student: Any, *, cases: Sequence[dict[str, Any]], x: Tensor) -> dict[str, Any]:
    """`softmax` of the first `rows` and `columns` of `x` by case: `dtype`, `layout`, `factor`, `shift`, `hidden`."""
    function = student.module("kernels_exercise.softmax").softmax
    runs = []
    for case in cases:
        values = x[: case["rows"], : case["columns"]] * case["factor"] + case.get("shift", 0.0)
        if case["hidden"]:
            values = values.clone()
            values[:, : case["hidden"]] = -float("inf")
        matrix = laid_out(values, case["dtype"], student.device, case["layout"])
        before = [matrix.clone()]
        run = observe(student, lambda: function(matrix), "softmax()")  # noqa: B023
        runs.append({**run, "unchanged": unchanged(before, [matrix])})
    return {"runs": runs}
