"""What Lab 2's classifiers come to in float32, in NumPy float64."""

from __future__ import annotations

import numpy as np

from grader.lab2.amp.cases import Classification, Precision
from grader.lab2.shared.reference import Adam, FloatArray, cross_entropy_gradient, mean_cross_entropy


def untrained_loss(case: Precision) -> float:
    """Mean cross entropy of the untrained classifier over all samples."""
    hidden = np.maximum(np.asarray(case.inputs, dtype=np.float64) @ case.first.T, 0)
    return mean_cross_entropy(hidden @ case.second.T, case.targets)


def start(case: Classification) -> FloatArray:
    """The weights before training."""
    return np.asarray(case.weight, dtype=np.float64)


def trained(case: Classification, *, cleared: bool = True) -> FloatArray:
    """The weights after training with Adam; unless `cleared`, gradients of earlier steps are still there."""
    adam, weight, gradient = Adam(), start(case), np.zeros_like(start(case))
    inputs = np.asarray(case.inputs, dtype=np.float64)
    for _ in range(case.epochs):
        gradient = (not cleared) * gradient + cross_entropy_gradient(weight, inputs, case.labels)
        weight = weight - adam.step(gradient)
    return weight
