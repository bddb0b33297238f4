"""Calls `vector_add`: results, what its kernels did, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gradebox.sandbox.probe_loader import Student
from grader.kernels.add.cases import Case, Run, Runs
from grader.kernels.shared.cases import Refusals
from grader.kernels.shared.probes.refusals import endings
from grader.kernels.shared.probes.watching import laid_out, observe, unchanged

MODULE = "kernels_exercise.vector_add"


def vector_add(student: Student, *, cases: Sequence[Case], x: Tensor, y: Tensor) -> Runs:
    """`vector_add` of the first elements of `x` and `y`, for each case."""
    function = student.module(MODULE).vector_add
    runs: list[Run] = []
    for case in cases:
        count, layout = math.prod(case["shape"]), case["layout"]
        left, right = (laid_out(operand[:count], case["dtype"], student.device, layout) for operand in (x, y))
        left, right = left.view(case["shape"]), right.view(case["shape"])
        before = [left.clone(), right.clone()]
        observed = observe(student, lambda: function(left, right), "vector_add()")  # noqa: B023
        runs.append({**observed, "unchanged": unchanged(before, [left, right])})
    return {"runs": runs}


def refusals(student: Student) -> Refusals:
    """What `vector_add` says to operands that do not fit."""
    module, zeros = student.module(MODULE), partial(torch.zeros, device=student.device)
    return endings(
        student,
        {
            "vector_add() of 5 and 6 elements": lambda: module.vector_add(zeros(5), zeros(6)),
            "vector_add() of [2, 3] and [3, 2]": lambda: module.vector_add(zeros(2, 3), zeros(3, 2)),
            "vector_add() of float32 and float16": lambda: module.vector_add(zeros(5), zeros(5, dtype=torch.float16)),
            "vector_add() of every second element": lambda: module.vector_add(zeros(10)[::2], zeros(5)),
        },
        {
            "vector_add() of the elements from the second on": lambda: module.vector_add(zeros(6)[1:], zeros(5)),
            "vector_add() of no elements": lambda: module.vector_add(zeros(0), zeros(0)),
        },
    )
