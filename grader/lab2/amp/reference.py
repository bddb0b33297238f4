"""What Lab 2's classifiers come to in float32, in NumPy float64."""

from __future__ import annotations

import numpy as np

from grader.lab2.amp.cases import Classification, Precision
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
