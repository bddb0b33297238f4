"""What Lab 2's classifiers come to in float32, in NumPy float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grader.lab2.amp.cases import Classification, Precision, PrecisionRun
from grader.lab2.shared.reference import ADAM_RATE, Adam, FloatArray, cross_entropy_gradient, mean_cross_entropy

LARGEST_FLOAT16 = 65519.0
"""What is larger is rounded to infinity."""


def untrained_loss(case: Precision) -> float:
    """Mean cross entropy of the untrained classifier over all samples."""
    return mean_cross_entropy(_outputs(case), case.targets)


def untrained_losses(case: Precision) -> list[float]:
    """The same of each batch."""
    ends = np.cumsum(case.sizes)[:-1]
    parts = zip(np.split(_outputs(case), ends), np.split(case.targets, ends), strict=True)
    return [mean_cross_entropy(outputs, targets) for outputs, targets in parts]


def flops(case: Precision) -> int:
    """Of the matrix products of one epoch: through both layers and back, but not to the inputs."""
    first, second = np.asarray(case.first).size, np.asarray(case.second).size
    return 2 * sum(case.sizes) * (2 * first + 3 * second)


def gradient_of_first(case: Precision) -> FloatArray:
    """Of the mean loss over all samples, by the weights of the first layer before training."""
    x, second = (np.asarray(values, dtype=np.float64) for values in (case.inputs, case.second))
    hidden = x @ np.asarray(case.first, dtype=np.float64).T
    outputs = np.maximum(hidden, 0) @ second.T
    shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(x)), case.targets] -= 1
    gradient: FloatArray = ((shares @ second) * (hidden > 0)).T @ x / len(x)
    return gradient


def agreement(case: Precision, after: Sequence[float]) -> float | None:
    """The share of the first layer's weights that went against their gradients; None if they did not move.

    The half of them with the largest gradients count.
    """
    gradient, start = gradient_of_first(case), np.asarray(case.first, dtype=np.float64)
    if len(after) != start.size + np.asarray(case.second).size:
        return 0.0
    moved = np.asarray(after[: start.size], dtype=np.float64).reshape(start.shape) - start
    large = np.abs(gradient) > np.median(np.abs(gradient))
    return float((moved * gradient < 0)[large].mean()) if moved.any() else None


def stands_still(case: Precision, run: PrecisionRun) -> bool:
    """Whether a training on samples of which the model is nearly sure left the weights of the right classes alone, as
    if their probability were 1, and moved others."""
    before = np.asarray(case.sure, dtype=np.float64)
    if len(run.sure) != before.size:
        return False
    moved = np.asarray(run.sure).reshape(before.shape) != before
    return bool(moved.any()) and not np.diag(moved).all()


_ROUNDED_SHARE = 0.05
"""Of numbers in float32, so many are also numbers of 16 bits only if somebody has rounded them: by chance one in 8,192
is, or one in 65,536."""


def are_rounded(after: Sequence[float], dtype: str) -> bool:
    """Whether a good part of these weights are numbers of a type of 16 bits, as all are if the model was cast to it."""
    weights = np.asarray(after, dtype=np.float32)
    weights = weights[weights != 0]
    if dtype == "float16":
        return int((weights.astype(np.float16) == weights).sum()) > _ROUNDED_SHARE * len(weights)
    # bfloat16 is the upper half of a float32
    return int((weights.view(np.uint32) % 2**16 == 0).sum()) > _ROUNDED_SHARE * len(weights)


def _outputs(case: Precision) -> FloatArray:
    hidden = np.maximum(np.asarray(case.inputs, dtype=np.float64) @ case.first.T, 0)
    return np.asarray(hidden @ case.second.T)


def untrained_loss_of(case: Classification) -> float:
    """Mean cross entropy of the untrained linear classifier."""
    return mean_cross_entropy(np.asarray(case.inputs, dtype=np.float64) @ start(case).T, case.labels)


def start(case: Classification) -> FloatArray:
    """The weights before training."""
    return np.asarray(case.weight, dtype=np.float64)


def trained(case: Classification, *, cleared: bool = True, weight_decay: float = 0.0) -> FloatArray:
    """The weights after training with Adam; unless `cleared`, gradients of earlier steps are still there.

    With `weight_decay` it is AdamW.
    """
    adam, weight, gradient = Adam(), start(case), np.zeros_like(start(case))
    inputs = np.asarray(case.inputs, dtype=np.float64)
    for _ in range(case.epochs):
        gradient = (not cleared) * gradient + cross_entropy_gradient(weight, inputs, case.labels)
        weight = weight * (1 - ADAM_RATE * weight_decay) - adam.step(gradient)
    return weight
