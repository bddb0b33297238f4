"""The training of linear layers in NumPy float64, and the micro-batches that a handler tries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grader.lab4.oom.cases import Attempts

Array: TypeAlias = NDArray[np.float64]
Batch: TypeAlias = tuple[Array, Array]
"""Data and targets."""


class Training:
    """Linear layers with ReLU between them, trained with Adam on `scale` times the mean squared error of batches, or on
    their mean `absolute` error."""

    def __init__(
        self,
        weights: ArrayLike,
        biases: ArrayLike,
        learning_rate: float,
        *,
        scale: float = 1.0,
        absolute: bool = False,
    ) -> None:
        self.parameters = [np.array(array, dtype=np.float64) for array in (weights, biases)]
        self._averages = [(np.zeros_like(array), np.zeros_like(array)) for array in self.parameters]
        self._rate, self._steps, self._scale, self._absolute = learning_rate, 0, scale, absolute

    def loss(self, data: Array, target: Array) -> float:
        """Mean error of the present parameters."""
        return self._error(self._forward(data)[-1] - target)

    def _error(self, difference: Array) -> float:
        return self._scale * float((np.abs(difference) if self._absolute else difference**2).mean())

    def step(self, data: Array, target: Array) -> float:
        """One step of Adam (D. Kingma, J. Ba 2014, algorithm 1) with PyTorch's defaults; the loss before it."""
        outputs = self._forward(data)
        weights, _ = self.parameters
        d_weights, d_biases = (np.zeros_like(array) for array in self.parameters)
        difference = outputs[-1] - target
        gradient = self._scale * (np.sign(difference) if self._absolute else 2 * difference) / target.size
        for layer in reversed(range(len(weights))):
            d_weights[layer] = gradient.T @ outputs[layer]
            d_biases[layer] = gradient.sum(axis=0)
            gradient = (gradient @ weights[layer]) * (outputs[layer] > 0)
        self._steps += 1
        for parameter, grad, (first, second) in zip(
            self.parameters, (d_weights, d_biases), self._averages, strict=True
        ):
            first += 0.1 * (grad - first)
            second += 0.001 * (grad**2 - second)
            corrected = np.sqrt(second / (1 - 0.999**self._steps)) + 1e-8
            parameter -= self._rate * first / (1 - 0.9**self._steps) / corrected
        return self._error(difference)

    def _forward(self, data: Array) -> list[Array]:
        """The input of each layer, and the last one's output."""
        outputs = [data]
        weights, biases = self.parameters
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            output = outputs[-1] @ weight.T + bias
            outputs.append(np.maximum(output, 0) if layer < len(weights) - 1 else output)
        return outputs


@dataclass(frozen=True)
class Losses:
    """The losses of a training, and the weights that it ends with."""

    training: list[float]
    """One per batch and epoch, before the step."""
    validation: list[float]
    """One per epoch: the mean over all samples."""
    weights: Array


def trained(training: Training, batches: Sequence[Batch], validation: Sequence[Batch], epochs: int) -> Losses:
    """Train on each batch as a whole for so many epochs."""
    losses: list[float] = []
    validated: list[float] = []
    for _ in range(epochs):
        losses += [training.step(*batch) for batch in batches]
        samples = [len(data) for data, _ in validation]
        validated.append(float(np.average([training.loss(*batch) for batch in validation], weights=samples)))
    return Losses(losses, validated, training.parameters[0])


def split(data: ArrayLike, targets: ArrayLike, sizes: Sequence[int]) -> list[Batch]:
    """Samples cut into batches, in float64."""
    cuts = np.cumsum(sizes)[:-1]
    halves = (np.split(np.asarray(samples, dtype=np.float64), cuts) for samples in (data, targets))
    return list(zip(*halves, strict=True))


def sizes_tried(case: Attempts) -> list[int]:
    """The micro-batches of the attempts: halved until one fits, or none is left."""
    sizes = [case.start]
    while sizes[-1] > max(1, case.fits):
        sizes.append(sizes[-1] // 2)
    return sizes
