"""The truth about the kernels of the exercise, in NumPy float64, and what work they cannot do without."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """What is left of float32 values in a dtype: the operands that a kernel really gets."""
    return values.astype(np.float16).astype(np.float32) if dtype == "float16" else values


def softmax(values: NDArray[Any]) -> Array:
    """Of each row."""
    wide = np.asarray(values, dtype=np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def attention(
    q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], gradient: NDArray[Any], *, causal: bool
) -> dict[str, Array]:
    """Output, and the gradients of query, key and value."""
    query, key, value, g = (np.asarray(one, dtype=np.float64) for one in (q, k, v, gradient))
    scale = query.shape[-1] ** -0.5
    scores = query @ key.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
    weights = softmax(scores)
    d_weights = g @ value.swapaxes(-1, -2)
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdims=True)) * scale
    return {
        "output": weights @ value,
        "d_query": d_scores @ key,
        "d_key": d_scores.swapaxes(-1, -2) @ query,
        "d_value": weights.swapaxes(-1, -2) @ g,
    }


def work(kernel: str, sizes: dict[str, Any]) -> tuple[int, int]:
    """FLOPs and bytes of `vector_add_work` and the like, by the names of their arguments."""
    one = sizes["element_bytes"]
    if kernel == "vector_add_work":
        return sizes["count"], 3 * sizes["count"] * one
    if kernel == "softmax_work":
        elements = sizes["rows"] * sizes["columns"]
        return 5 * elements, 2 * elements * one
    if kernel == "matmul_work":
        m, n, k = sizes["m"], sizes["n"], sizes["k"]
        return 2 * m * n * k, (m * k + k * n + m * n) * one
    heads, length, width = sizes["batch"] * sizes["heads"], sizes["length"], sizes["head_dim"]
    pairs = length * (length + 1) // 2 if sizes["causal"] else length**2
    return 4 * heads * pairs * width, heads * (4 * length * width * one + 4 * length)
