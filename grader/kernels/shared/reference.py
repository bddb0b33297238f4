"""What the operands of a kernel really are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """What is left of float32 values in a dtype: the operands that a kernel really gets."""
    return values.astype(np.float16).astype(np.float32) if dtype == "float16" else values


def softmax(values: Array) -> Array:
    """Of each row."""
    powers = np.exp(values - values.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result
