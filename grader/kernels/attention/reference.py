"""Attention and its gradients, in NumPy float64."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from grader.kernels.attention.cases import Case, Operands
from grader.kernels.shared.reference import Array, rounded, softmax


class Expected(TypedDict):
    """The output of attention, and the gradients of query, key and value."""

    output: Array
    d_query: Array
    d_key: Array
    d_value: Array


def attention(operands: Operands, case: Case) -> Expected:
    """What comes of the operands that a kernel gets."""
    cut = np.s_[: case["batch"], : case["heads"], : case["length"], : case["width"]]
    scaled = (operands["q"][cut] * np.float32(case["factor"]), operands["k"][cut], operands["v"][cut])
    query, key, value, gradient = (
        rounded(operand.astype(np.float32), case["dtype"]).astype(np.float64)
        for operand in (*scaled, operands["gradient"][cut])
    )
    return _attention(query, key, value, np.ones_like(gradient) if case["summed"] else gradient, causal=case["causal"])


def _attention(query: Array, key: Array, value: Array, gradient: Array, *, causal: bool) -> Expected:
    scale = query.shape[-1] ** -0.5
    scores = query @ key.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
    weights = softmax(scores)
    d_weights = gradient @ value.swapaxes(-1, -2)
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdims=True)) * scale
    return {
        "output": weights @ value,
        "d_query": d_scores @ key,
        "d_key": d_scores.swapaxes(-1, -2) @ query,
        "d_value": weights.swapaxes(-1, -2) @ gradient,
    }
