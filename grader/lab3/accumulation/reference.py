"""What a pass of `train_with_accumulation` must come to, also with one mistake in it, in NumPy float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grader.lab3.accumulation.cases import IGNORED, Pass
from grader.lab3.shared.reference import Array, Sgd, class_loss, half_squares

MISTAKES = (
    "never_cleared", "cleared_each_batch", "not_cleared_before",
    "summed", "all_alike", "by_full_windows", "weighed_by_full_windows", "last_window_dropped",
    "never_exchanged", "tail_not_exchanged", "another_default_momentum", "another_default_rate",
    "not_in_training_mode",
)  # fmt: skip
"""By which names `follow` knows them."""
APART = ("never_exchanged", "tail_not_exchanged")
"""With these mistakes each rank comes to weights of its own."""
WRONG_LOSSES = ("of_one_rank", "mean_of_means", "of_one_rank_mean_of_means", "summed", "of_the_last_batch")
"""By which names `losses_with` knows mistakes in the losses of windows."""
_WRONG_MOMENTUM, _WRONG_RATE = 0.9, 0.01
"""Of default optimizers that are not plain SGD with the rate of the document."""


@dataclass(frozen=True)
class Accumulated:
    """What a pass came to."""

    weight: Array
    losses: list[float]
    """Mean loss of each window before its step."""
    counts: list[int]
    """Samples or tokens that each window's loss is the mean over."""
    batch_losses: list[list[tuple[float, int]]]
    """Mean loss of each batch of a window, rank after rank, before its step; and what counts in it."""


def windows(case: Pass) -> list[list[list[int]]]:
    """The samples of each batch, on all ranks, behind each optimizer step."""
    starts = np.cumsum([0, *(sum(rank) for rank in case.sizes)])
    made = []
    for first in range(0, len(case.sizes[0]), case.steps):
        window: list[list[int]] = []
        for start, rank in zip(starts, case.sizes, strict=False):
            ends = (int(start) + np.cumsum([0, *rank])).tolist()
            last = min(first + case.steps, len(rank))
            window += [list(range(ends[batch], ends[batch + 1])) for batch in range(first, last)]
        made.append(window)
    return made


def follow(case: Pass, mistake: str = "", rank: int = 0) -> Accumulated:
    """Do the steps of a pass, with one of `MISTAKES` or with none.

    With a mistake that lets ranks come to weights of their own, these are the weights of `rank`.
    """
    rate, momentum = case.rate, case.momentum
    if case.default_optimizer:
        rate = _WRONG_RATE if mistake == "another_default_rate" else rate
        momentum = _WRONG_MOMENTUM if mistake == "another_default_momentum" else momentum
    trained = Sgd(np.asarray(case.weight, dtype=np.float64), rate, momentum)
    made: list[list[tuple[float, int]]] = []
    keeps_first = mistake in ("never_cleared", "not_cleared_before")
    accumulated = np.full_like(trained.weight, case.stale if keeps_first else 0.0)
    ranks = len(case.sizes)
    for window in windows(case):
        batches = len(window) // ranks
        if mistake == "last_window_dropped" and batches < case.steps:
            break
        if not keeps_first or (mistake == "not_cleared_before" and made):
            accumulated = np.zeros_like(trained.weight)
        alone = mistake == "never_exchanged" or (mistake == "tail_not_exchanged" and batches < case.steps)
        factor = case.evaluation if mistake == "not_in_training_mode" else 1.0
        parts = [_batch(case, trained.weight, batch, factor) for batch in window]
        counted = sum(count for _, count, _ in parts)
        made.append([(loss, count) for loss, count, _ in parts])
        for index, (_, count, gradient) in enumerate(parts):
            if alone and index // batches != rank:
                continue
            if mistake != "cleared_each_batch" or index % batches == batches - 1:
                share = _share(mistake, count, counted, batches, case.steps, ranks)
                accumulated = accumulated + share * (ranks if alone else 1) * gradient
        trained.step(accumulated)
    return Accumulated(
        weight=trained.weight,
        losses=[_mean(window) for window in made],
        counts=[sum(count for _, count in window) for window in made],
        batch_losses=made,
    )


def losses_after(case: Pass, mistake: str) -> list[float]:
    """The mean loss of each window before its step, if the pass is made with one of `MISTAKES` or with none."""
    if mistake not in APART:
        return follow(case, mistake).losses
    by_rank = [follow(case, mistake, rank).batch_losses for rank in range(len(case.sizes))]
    losses = []
    for windows_of_ranks in zip(*by_rank, strict=True):
        batches = len(windows_of_ranks[0]) // len(by_rank)
        own = [window[rank * batches : (rank + 1) * batches] for rank, window in enumerate(windows_of_ranks)]
        losses.append(_mean([batch for part in own for batch in part]))
    return losses


def losses_with(case: Pass, mistake: str, rank: int) -> list[float]:
    """The losses that a rank reports of a pass with right weights, if it makes one of `WRONG_LOSSES`."""
    losses = []
    for window in follow(case).batch_losses:
        batches = len(window) // len(case.sizes)
        own = window[rank * batches : (rank + 1) * batches]
        chosen = own if mistake in ("of_one_rank", "of_one_rank_mean_of_means", "of_the_last_batch") else window
        if mistake == "of_one_rank":
            losses.append(_mean(chosen))
        elif mistake == "of_the_last_batch":
            losses.append(chosen[-1][0])
        elif mistake == "summed":
            losses.append(sum(loss for loss, _ in chosen) / len(case.sizes))
        else:
            losses.append(sum(loss for loss, _ in chosen) / len(chosen))
    return losses


def _mean(batches: list[tuple[float, int]]) -> float:
    """Of losses, each with what counts in its batch."""
    return sum(loss * count for loss, count in batches) / sum(count for _, count in batches)


def _batch(case: Pass, weight: Array, batch: list[int], factor: float) -> tuple[float, int, Array]:
    """Mean loss of a batch, what counts in it, and the gradient of that mean; inputs are multiplied by `factor`."""
    x = factor * np.asarray(case.inputs[batch], dtype=np.float64).reshape(-1, weight.shape[1] - 1)
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    targets = case.targets[batch]
    if targets.dtype == np.int64:
        counted = targets.reshape(-1) != IGNORED
        x, classes = x[counted], targets.reshape(-1)[counted]
        loss, difference = class_loss(x @ weight.T, classes)
    else:
        loss, difference = half_squares(x @ weight.T, np.asarray(targets, dtype=np.float64))
    return loss, len(x), difference.T @ x / len(x)


def _share(mistake: str, counted: int, of_window: int, batches: int, steps: int, ranks: int) -> float:
    """By what the mean loss of a batch is multiplied, before ranks' gradients are added up.

    Args:
        mistake: one of `MISTAKES`, or none.
        counted: samples or tokens that count in the batch.
        of_window: and in its window, on all ranks.
        batches: of the window, on a rank.
        steps: of a full window.
        ranks: that take part.
    """
    each = {"summed": 1.0, "all_alike": 1 / batches, "by_full_windows": 1 / steps}
    if mistake == "weighed_by_full_windows":
        return counted / of_window * batches / steps
    return each[mistake] / ranks if mistake in each else counted / of_window
