"""Calls `softmax`: results, what its kernels did, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gradebox.sandbox.probe_loader import Student
from grader.kernels.shared.cases import Refusals
from grader.kernels.shared.probes.refusals import endings
from grader.kernels.shared.probes.watching import laid_out, observe, unchanged
from grader.kernels.softmax.cases import Case, Run, Runs

MODULE = "kernels_exercise.softmax"


def softmax(student: Student, *, cases: Sequence[Case], x: Tensor) -> Runs:
    """`softmax` of the first rows and columns of `x`, for each case."""
    function = student.module(MODULE).softmax
    runs: list[Run] = []
    for case in cases:
        values = x[: case["rows"], : case["columns"]] * case["factor"] + case["shift"]
        if case["hidden"]:
            values = values.clone()
            values[:, : case["hidden"]] = -float("inf")
        matrix = laid_out(values, case["dtype"], student.device, case["layout"])
        before = [matrix.clone()]
        observed = observe(student, lambda: function(matrix), "softmax()")  # noqa: B023
        runs.append({**observed, "unchanged": unchanged(before, [matrix])})
    return {"runs": runs}


def refusals(student: Student) -> Refusals:
    """What `softmax` says to what is no matrix of its kind."""
    module, zeros = student.module(MODULE), partial(torch.zeros, device=student.device)
    return endings(
        student,
        {
            "softmax() of a vector": lambda: module.softmax(zeros(5)),
            "softmax() of [2, 3, 4]": lambda: module.softmax(zeros(2, 3, 4)),
            "softmax() of rows without columns": lambda: module.softmax(zeros(2, 0)),
            "softmax() of 8193 columns": lambda: module.softmax(zeros(1, 8193)),
            "softmax() of every second column": lambda: module.softmax(zeros(2, 10)[:, ::2]),
        },
        {
            "softmax() of 8192 columns": lambda: module.softmax(zeros(1, 8192)),
            "softmax() of one column": lambda: module.softmax(zeros(3, 1)),
        },
    )
