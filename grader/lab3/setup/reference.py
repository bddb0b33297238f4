"""What Lab 3's trainings and evaluations come to, in NumPy float64.

The gradient of each step is taken over the samples that passed the ranks' models in that step, so that what is wrong
with the shares of the data costs nothing where only gradients are judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grader.lab3.setup.cases.evaluation import Evaluation
from grader.lab3.setup.cases.training import Train
from grader.lab3.shared.reference import Array, Sgd, cross_entropy, half_squares

RTOL = {"float64": 1e-9, "float32": 2e-5}
"""Of weights, relative to the largest one. Sums in another order differ by 1e-15 and 1e-6; every planted mistake by
1e-3 and more."""
Steps = Sequence[Sequence[Sequence[int]]]
"""The samples that passed a model, by rank and step; of all ranks the same number of steps."""


@dataclass(frozen=True)
class Trained:
    """What a training came to."""

    weight: Array
    losses: list[float]
    """Mean loss of each step, over the samples of all ranks, before it."""


def follow(case: Train, ranks: Steps, *, summed: bool = False) -> Trained:
    """Do the ranks' steps from rank 0's weights.

    With a mistake: with gradients that are `summed` over ranks.
    """
    weight, shift = (np.asarray(value[0], dtype=np.float64) for value in (case.weights, case.shifts))
    rate, momentum = case.options["learning_rate"], case.options.get("momentum", 0.0)
    trained = Sgd(weight, rate * (case.ranks if summed else 1), momentum)
    loss_of = cross_entropy if case.classes else half_squares
    losses = []
    for step in range(len(ranks[0])):
        samples = [sample for rank in ranks for sample in rank[step]]
        x = np.asarray(case.inputs[samples], dtype=np.float64) * _factors(case, ranks, step)
        targets = np.asarray(case.targets[samples], dtype=np.float64)
        loss, difference = loss_of(x @ trained.weight.T + shift, targets)
        losses.append(loss)
        trained.step(difference.T @ x / len(x))
    return Trained(trained.weight, losses)


def _factors(case: Train, ranks: Steps, step: int) -> Array:
    """[samples of all ranks, 1]: what the inputs of each were multiplied by."""
    drawn = [own[step] if step < len(own) else 1.0 for own in case.factors]
    return np.repeat(drawn, [len(rank[step]) for rank in ranks])[:, np.newaxis]


def epoch_losses(trained: Trained, ranks: Steps, epochs: int) -> list[float]:
    """Mean loss of each epoch over all samples of all ranks."""
    steps = len(trained.losses)
    sizes = np.array([sum(len(rank[step]) for rank in ranks) for step in range(steps)])
    parts = [slice(epoch * steps // epochs, (epoch + 1) * steps // epochs) for epoch in range(epochs)]
    return [float((np.array(trained.losses[part]) * sizes[part]).sum() / sizes[part].sum()) for part in parts]


def accuracy(case: Train, weight: Array) -> tuple[float, float] | None:
    """The least and the most of the test samples, as a share, that these weights get right; they differ where two
    outputs do not for this dtype. None: there is no test set."""
    if not case.tests:
        return None
    x, targets = (np.asarray(values[case.samples :], dtype=np.float64) for values in (case.inputs, case.targets))
    outputs = x @ weight.T + np.asarray(case.shifts[0], dtype=np.float64)
    own = outputs[np.arange(len(x)), targets.argmax(axis=1)][:, np.newaxis]
    room = 10 * RTOL[case.dtype] * np.abs(outputs).max()
    ahead = (outputs > own + room).any(axis=1), (outputs > own - room).sum(axis=1) > 1
    return float((~ahead[0] & ~ahead[1]).mean()), float((~ahead[0]).mean())


def batch_sizes(samples: int, ranks: int, batch_size: int) -> list[int]:
    """Of one rank's epoch."""
    share = -(-samples // ranks)
    return [batch_size] * (share // batch_size) + ([share % batch_size] if share % batch_size else [])


def right_answers(case: Evaluation) -> NDArray[np.bool_]:
    """[ranks, samples]: which samples each rank's model gets right."""
    right: NDArray[np.bool_] = case.answers == case.targets
    return right
