"""One step of training as Lab 3's references compute it, in NumPy float64: losses, their derivatives, and SGD."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
Loss: TypeAlias = tuple[float, Array]
"""Mean over samples, and each sample's derivative by its outputs."""


@dataclass
class Sgd:
    """Weights that follow gradients, as those of `torch.optim.SGD` do."""

    weight: Array
    rate: float
    momentum: float = 0.0
    _velocity: Array = field(init=False)

    def __post_init__(self) -> None:
        self._velocity = np.zeros_like(self.weight)

    def step(self, gradient: Array) -> None:
        """Take one optimizer step."""
        self._velocity = self.momentum * self._velocity + gradient
        self.weight = self.weight - self.rate * self._velocity


def half_squares(outputs: Array, targets: Array) -> Loss:
    """Half the squared distance."""
    difference = outputs - targets
    return 0.5 * float((difference**2).sum(axis=1).mean()), difference


def cross_entropy(outputs: Array, targets: Array) -> Loss:
    """Cross entropy, where the largest number of a sample's target is its class."""
    return class_loss(outputs, targets.argmax(axis=1))


def class_loss(outputs: Array, classes: NDArray[np.int64]) -> Loss:
    """Cross entropy of classes."""
    rows = np.arange(len(outputs))
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    loss = -float(np.log(shares[rows, classes]).mean())
    shares[rows, classes] -= 1
    return loss, shares


def are_close(actual: ArrayLike, expected: Array, rtol: float) -> bool:
    """Whether weights have the expected shape and values; `rtol` is relative to the largest value."""
    atol = rtol * float(np.abs(expected).max())
    return np.shape(actual) == expected.shape and np.allclose(actual, expected, rtol=rtol, atol=atol)
