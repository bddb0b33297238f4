"""The training of linear layers in NumPy float64, right or with a mistake, and the micro-batches of a handler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grader.lab4.oom.cases import Attempts

Array: TypeAlias = NDArray[np.float64]
Batch: TypeAlias = tuple[Array, Array]
"""Data and targets."""
Gradients: TypeAlias = tuple[Array, Array]
"""Of the weights and of the biases."""
Mistake: TypeAlias = Literal[
    "only_the_first_part",
    "short_part_left_out",
    "mean_of_means",
    "gradients_without_shares",
    "step_per_micro_batch",
    "cleared_in_between",
    "never_cleared",
]
MISTAKES: tuple[Mistake, ...] = get_args(Mistake)
"""What may be wrong with the micro-batches of a training: it shows in the weights."""
Report: TypeAlias = Literal["of_the_last_part", "mean_of_means", "sum_of_means"]
REPORTS: tuple[Report, ...] = get_args(Report)
"""What may be reported as a batch's loss, if the weights are right."""

Validated: TypeAlias = Literal["mean_of_batches", "mean_of_micro_batches", "squared_error"]
VALIDATED: tuple[Validated, ...] = get_args(Validated)
"""What a validation loss may be instead of the mean error over all samples."""


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

    def loss(self, data: Array, target: Array, *, squared: bool = False) -> float:
        """Mean error of the present parameters; with a mistake the squared one, whatever is trained on."""
        difference = self._forward(data)[-1] - target
        return float((difference**2).mean()) if squared else self._error(difference)

    def _error(self, difference: Array) -> float:
        return self._scale * float((np.abs(difference) if self._absolute else difference**2).mean())

    def gradients(self, data: Array, target: Array) -> Gradients:
        """Those of the mean error, by weights and biases."""
        outputs = self._forward(data)
        weights, _ = self.parameters
        d_weights, d_biases = (np.zeros_like(array) for array in self.parameters)
        difference = outputs[-1] - target
        gradient = self._scale * (np.sign(difference) if self._absolute else 2 * difference) / target.size
        for layer in reversed(range(len(weights))):
            d_weights[layer] = gradient.T @ outputs[layer]
            d_biases[layer] = gradient.sum(axis=0)
            gradient = (gradient @ weights[layer]) * (outputs[layer] > 0)
        return d_weights, d_biases

    def step(self, gradients: Gradients) -> None:
        """One step of Adam (D. Kingma, J. Ba 2014, algorithm 1) with PyTorch's defaults."""
        self._steps += 1
        for parameter, grad, (first, second) in zip(self.parameters, gradients, self._averages, strict=True):
            first += 0.1 * (grad - first)
            second += 0.001 * (grad**2 - second)
            corrected = np.sqrt(second / (1 - 0.999**self._steps)) + 1e-8
            parameter -= self._rate * first / (1 - 0.9**self._steps) / corrected

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


def trained(
    training: Training,
    batches: Sequence[Batch],
    validation: Sequence[Batch],
    epochs: int,
    *,
    micro_batch: int | None = None,
    mistake: Mistake | None = None,
    report: Report | None = None,
    validated_by: Validated | None = None,
) -> Losses:
    """Train for so many epochs: on each batch as a whole, or in micro-batches with a mistake."""
    losses: list[float] = []
    validated: list[float] = []
    left: Gradients | None = None
    for _ in range(epochs):
        for data, target in batches:
            parts = cut((data, target), micro_batch or len(data), mistake)
            errors = [training.loss(*part) for part, _ in parts]
            shares = [share for _, share in parts]
            held = [] if left is None else [left]
            for part, share in parts:
                weights, biases = training.gradients(*part)
                scaled = (share * weights, share * biases)
                if mistake == "step_per_micro_batch":
                    training.step(scaled)
                held = [scaled] if mistake == "cleared_in_between" else [*held, scaled]
            if mistake != "step_per_micro_batch":
                added = (
                    sum((pair[0] for pair in held), 0.0 * held[0][0]),
                    sum((pair[1] for pair in held), 0.0 * held[0][1]),
                )
                training.step(added)
                left = added if mistake == "never_cleared" else None
            losses.append(_reported(errors, shares, report))
        validated.append(_validated(training, validation, micro_batch, validated_by))
    return Losses(losses, validated, training.parameters[0])


def cut(batch: Batch, micro_batch: int, mistake: Mistake | None = None) -> list[tuple[Batch, float]]:
    """The micro-batches that a batch is cut into, each with its weight in the gradient."""
    data, target = batch
    first = range(0, len(data), micro_batch)
    parts = [(data[start : start + micro_batch], target[start : start + micro_batch]) for start in first]
    if mistake == "only_the_first_part":
        parts = parts[:1]
    if mistake == "short_part_left_out":
        parts = [part for part in parts if len(part[0]) == micro_batch] or parts
    shares = [len(part[0]) / len(data) for part in parts]
    if mistake == "mean_of_means":
        shares = [1 / len(parts)] * len(parts)
    if mistake == "gradients_without_shares":
        shares = [1.0] * len(parts)
    return list(zip(parts, shares, strict=True))


def _reported(errors: Sequence[float], shares: Sequence[float], report: Report | None) -> float:
    match report:
        case None:
            return float(np.dot(errors, shares))
        case "of_the_last_part":
            return errors[-1]
        case "mean_of_means":
            return float(np.mean(errors))
        case "sum_of_means":
            return float(np.sum(errors))


def _validated(
    training: Training, validation: Sequence[Batch], micro_batch: int | None, mistake: Validated | None
) -> float:
    squared = mistake == "squared_error"
    if mistake == "mean_of_micro_batches":
        parts = [part for batch in validation for part, _ in cut(batch, micro_batch or len(batch[0]))]
        return float(np.mean([training.loss(*part) for part in parts]))
    errors = [training.loss(*batch, squared=squared) for batch in validation]
    if mistake == "mean_of_batches":
        return float(np.mean(errors))
    return float(np.average(errors, weights=[len(data) for data, _ in validation]))


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
