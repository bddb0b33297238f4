"""What Lab 2's small trainings have in common, in NumPy float64: the loss, the optimizer and the loss scale."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grader.lab2.shared.cases import Passes, batch_of

FloatArray = NDArray[np.float64]
ADAM_RATE = 1e-3
"""Of learning, by default."""


class Adam:
    """Steps of `torch.optim.Adam` with its defaults, for one array of weights (Kingma and Ba 2015, algorithm 1)."""

    def __init__(self) -> None:
        self._steps, self._mean, self._square = 0, np.zeros(()), np.zeros(())

    def step(self, gradient: FloatArray) -> FloatArray:
        """What is to be taken from the weights."""
        self._steps += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.999 * self._square + 0.001 * gradient**2
        mean, square = self._mean / (1 - 0.9**self._steps), self._square / (1 - 0.999**self._steps)
        return ADAM_RATE * mean / (np.sqrt(square) + 1e-8)


def trained_on(case: Passes, batches: Iterable[int], *, cleared: bool = True) -> FloatArray:
    """The weight and bias of the classifier after a step of Adam on each of these batches.

    Args:
        cleared: whether gradients are cleared before each batch, as is right.
    """
    weight, adam = np.asarray(case.weight, dtype=np.float64), Adam()
    gradient = np.zeros_like(weight)
    for number in batches:
        images, classes = batch_of(case.seed, number)
        inputs = np.column_stack([images, np.ones(len(images))]).astype(np.float64)
        gradient = cross_entropy_gradient(weight, inputs, classes) + (0 if cleared else gradient)
        weight = weight - adam.step(gradient)
    return weight


class LossScale:
    """The loss scale of dynamic scaling, by the rule and with the defaults of `torch.amp.GradScaler`."""

    def __init__(
        self,
        *,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self.scale = init_scale
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval, self._good_steps = growth_interval, 0

    def update(self, overflow: bool) -> None:
        """A step has ended, with or without an overflow."""
        self._good_steps = 0 if overflow else self._good_steps + 1
        if overflow:
            self.scale *= self._backoff_factor
        elif self._good_steps == self._growth_interval:
            self.scale, self._good_steps = self.scale * self._growth_factor, 0

    def after(self, overflows: Iterable[bool]) -> float:
        """The scale after these steps."""
        for overflow in overflows:
            self.update(overflow)
        return self.scale


def to_bfloat16(x: NDArray[np.floating]) -> FloatArray:
    """Rounded to the 8 significant bits of bfloat16, to even as hardware does."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


def mean_cross_entropy(logits: FloatArray, labels: NDArray[np.int64]) -> float:
    """Over all samples."""
    largest = logits.max(axis=1, keepdims=True)
    normaliser = largest[:, 0] + np.log(np.exp(logits - largest).sum(axis=1))
    return float((normaliser - logits[np.arange(len(logits)), labels]).mean())


def cross_entropy_gradient(weight: FloatArray, inputs: FloatArray, labels: NDArray[np.int64]) -> FloatArray:
    """Of the mean cross entropy of a linear classifier, outputs inputs @ weight.T, with respect to its weight."""
    logits = inputs @ weight.T
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = scores / scores.sum(axis=1, keepdims=True) - np.eye(len(weight))[labels]
    return np.asarray(shares.T @ inputs / len(inputs))


def relative_error(weights: ArrayLike, expected: FloatArray, start: FloatArray) -> float:
    """How far weights are from where they should be, against the way that they should have gone."""
    way = np.linalg.norm(np.ravel(expected) - np.ravel(start))
    return float(np.linalg.norm(np.subtract(weights, np.ravel(expected))) / way)
