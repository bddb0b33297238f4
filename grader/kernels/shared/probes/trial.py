"""A probe of the machine: does Triton compile and run a product here? No code of a submission is there."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from gradebox.sandbox.probe_loader import Student
from grader.kernels.shared.cases import TritonErrors

_SIDE = 32


@triton.jit  # type: ignore[untyped-decorator]
def _product(left: Any, right: Any, output: Any, side: tl.constexpr) -> None:
    places = tl.arange(0, side)[:, None] * side + tl.arange(0, side)[None, :]
    product = tl.dot(tl.load(left + places), tl.load(right + places), input_precision="ieee")
    tl.store(output + places, product)


def product(student: Student) -> TritonErrors:
    """The error of a product in float32 and in float16, by dtype; empty where it came back right."""
    errors = {}
    for dtype in (torch.float32, torch.float16):
        left, right = (torch.ones(_SIDE, _SIDE, device=student.device, dtype=dtype) for _ in range(2))
        output = torch.zeros(_SIDE, _SIDE, device=student.device)
        try:
            _product[(1,)](left, right, output, _SIDE)
            right_sum = bool((output == _SIDE).all())
        except Exception as error:
            errors[str(dtype)] = f"{type(error).__name__}: {str(error)[:300]}"
        else:
            errors[str(dtype)] = "" if right_sum else "the result is wrong"
    return {"errors": errors}
