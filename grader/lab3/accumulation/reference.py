"""What a pass of `train_with_accumulation` must come to, also with one mistake in it, in NumPy float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grader.lab3.accumulation.cases import IGNORED, Pass
from grader.lab3.shared.reference import Array, Sgd, class_loss, half_squares

MISTAKES = (
    "never_cleared", "cleared_each_batch", "not_cleared_before",
    "summed", "all_alike", "by_full_windows", "last_window_dropped",
)  # fmt: skip
"""By which names `follow` knows them."""


@dataclass(frozen=True)
class Accumulated:
    """What a pass came to."""

    weight: Array
    losses: list[float]
    """Mean loss of each window before its step."""
    counts: list[int]
    """Samples or tokens that each window's loss is the mean over."""


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


def follow(case: Pass, mistake: str = "") -> Accumulated:
    """Do the steps of a pass, with one of `MISTAKES` or with none."""
    trained = Sgd(np.asarray(case.weight, dtype=np.float64), case.rate, case.momentum)
    losses: list[float] = []
    counts: list[int] = []
    keeps_first = mistake in ("never_cleared", "not_cleared_before")
    accumulated = np.full_like(trained.weight, case.stale if keeps_first else 0.0)
    ranks = len(case.sizes)
    for window in windows(case):
        batches = len(window) // ranks
        if mistake == "last_window_dropped" and batches < case.steps:
            break
        if not keeps_first or (mistake == "not_cleared_before" and losses):
            accumulated = np.zeros_like(trained.weight)
        parts = [_batch(case, trained.weight, batch) for batch in window]
        counted = sum(count for _, count, _ in parts)
        losses.append(sum(loss * count for loss, count, _ in parts) / counted)
        counts.append(counted)
        for index, (_, count, gradient) in enumerate(parts):
            if mistake != "cleared_each_batch" or index % batches == batches - 1:
                accumulated = accumulated + _share(mistake, count, counted, batches, case.steps, ranks) * gradient
        trained.step(accumulated)
    return Accumulated(trained.weight, losses, counts)


def _batch(case: Pass, weight: Array, batch: list[int]) -> tuple[float, int, Array]:
    """Mean loss of a batch, what counts in it, and the gradient of that mean."""
    x = np.asarray(case.inputs[batch], dtype=np.float64).reshape(-1, weight.shape[1] - 1)
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
    return each[mistake] / ranks if mistake in each else counted / of_window
