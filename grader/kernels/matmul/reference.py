"""The matrix product, in NumPy float64."""

from __future__ import annotations

import numpy as np

from grader.kernels.matmul.cases import Case, Inputs
from grader.kernels.shared.reference import Array, rounded


def product(inputs: Inputs, case: Case) -> Array:
    """The product of the operands that a kernel gets."""
    operands = (inputs["a"][: case["m"], : case["k"]], inputs["b"][: case["k"], : case["n"]])
    left, right = (rounded(operand, case["dtype"]).astype(np.float64) for operand in operands)
    result: Array = left @ right
    return result
