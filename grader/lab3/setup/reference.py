"""What Lab 3's trainings and evaluations come to, in NumPy float64.

The gradient of each step is taken over the samples that passed the ranks' models in that step, so that what is wrong
with the shares of the data costs nothing where only gradients are judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    of_ranks: list[list[float]]
    """The same of each rank's own samples, by step and rank."""


Kept = Literal["", "always", "in an epoch"]
"""How long gradients are not cleared: not beyond a step, never, or only when an epoch begins."""


def follow(case: Train, ranks: Steps, *, summed: bool = False, kept: Kept = "", own_buffers: bool = False) -> Trained:
    """Do the ranks' steps from rank 0's weights, each by the mean of the ranks' gradients.

    With a mistake: with gradients that are `summed` over ranks, or `kept` from one step to the next, or with the
    buffers that each rank's model was made with.
    """
    weight = np.asarray(case.weights[0], dtype=np.float64)
    shifts = [np.asarray(case.shifts[rank if own_buffers else 0], dtype=np.float64) for rank in range(case.ranks)]
    rate, momentum = case.options["learning_rate"], case.options.get("momentum", 0.0)
    trained = Sgd(weight, rate * (case.ranks if summed else 1), momentum)
    losses, of_ranks = [], []
    accumulated = np.zeros_like(weight)
    steps_of_epoch = max(1, len(ranks[0]) // case.options["epochs"])
    for step in range(len(ranks[0])):
        if not kept or (kept == "in an epoch" and step % steps_of_epoch == 0):
            accumulated = np.zeros_like(weight)
        parts = [_gradient(case, trained.weight, shifts[rank], rank, own[step], step) for rank, own in enumerate(ranks)]
        sizes = [len(own[step]) for own in ranks]
        of_ranks.append([loss for loss, _ in parts])
        losses.append(float(np.average(of_ranks[-1], weights=sizes)))
        # What was exchanged before is the same on all ranks, so that its mean is itself.
        accumulated = accumulated + np.mean([gradient for _, gradient in parts], axis=0)
        trained.step(accumulated)
    return Trained(trained.weight, losses, of_ranks)


def follow_apart(case: Train, ranks: Steps, *, exchanged: bool) -> list[Array]:
    """The weights of each rank, if each keeps weights of its own.

    With a mistake: gradients are `exchanged`, but each rank begins with its own weights; or all begin with those of
    rank 0, and no rank hears of another's gradients.
    """
    rate, momentum = case.options["learning_rate"], case.options.get("momentum", 0.0)
    starts = case.weights if exchanged else [case.weights[0]] * case.ranks
    shifts = case.shifts if exchanged else [case.shifts[0]] * case.ranks
    trained = [Sgd(np.asarray(start, dtype=np.float64), rate, momentum) for start in starts]
    for step in range(len(ranks[0])):
        gradients = [
            _gradient(case, trained[rank].weight, np.asarray(shifts[rank], dtype=np.float64), rank, own[step], step)[1]
            for rank, own in enumerate(ranks)
        ]
        mean: Array = np.mean(gradients, axis=0)
        for own_trained, gradient in zip(trained, gradients, strict=True):
            own_trained.step(mean if exchanged else gradient)
    return [own_trained.weight for own_trained in trained]


def _gradient(
    case: Train, weight: Array, shift: Array, rank: int, samples: Sequence[int], step: int
) -> tuple[float, Array]:
    """Mean loss and gradient of one rank's batch."""
    factor = case.factors[rank][step] if step < len(case.factors[rank]) else 1.0
    x = np.asarray(case.inputs[list(samples)], dtype=np.float64) * factor
    targets = np.asarray(case.targets[list(samples)], dtype=np.float64)
    loss, difference = (cross_entropy if case.classes else half_squares)(x @ weight.T + shift, targets)
    return loss, difference.T @ x / len(x)


def epoch_losses(trained: Trained, ranks: Steps, epochs: int) -> list[float]:
    """Mean loss of each epoch over all samples of all ranks."""
    steps = len(trained.losses)
    sizes = np.array([sum(len(rank[step]) for rank in ranks) for step in range(steps)])
    parts = [slice(epoch * steps // epochs, (epoch + 1) * steps // epochs) for epoch in range(epochs)]
    return [float((np.array(trained.losses[part]) * sizes[part]).sum() / sizes[part].sum()) for part in parts]


def wrong_losses(trained: Trained, ranks: Steps, epochs: int, rank: int) -> dict[str, list[float]]:
    """The losses of epochs that a rank reports, by the mistake that it makes."""
    steps = len(trained.losses)
    own = np.array(trained.of_ranks)
    sizes = np.array([[len(batches[step]) for batches in ranks] for step in range(steps)])
    parts = [slice(epoch * steps // epochs, (epoch + 1) * steps // epochs) for epoch in range(epochs)]
    right = epoch_losses(trained, ranks, epochs)
    return {
        "of_this_rank": [float((own * sizes)[part, rank].sum() / sizes[part, rank].sum()) for part in parts],
        "means_of_this_rank": [float(own[part, rank].mean()) for part in parts],
        "mean_of_means": [float(own[part].mean()) for part in parts],
        "summed": [loss * len(ranks) for loss in right],
        "last_batch": [float(own[part][-1, rank]) for part in parts],
    }


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
