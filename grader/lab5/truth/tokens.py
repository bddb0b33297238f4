"""Sequences many of whose targets do not count, and in float64 what an epoch over them makes of a linear model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.fresh import Fresh
from grader.lab5.truth.training import rate

IGNORED = -100
RANKS, ACCUMULATION, WINDOWS = 2, 2, 3
"""Of the epoch: in its first window no target of rank 0's first batch counts, in its second none of anybody."""


@dataclass(frozen=True)
class Tokens:
    """Inputs [samples, length, features], classes [samples, length], and the configuration."""

    weight: Any
    inputs: Any
    targets: Any
    batch_size: int
    config: dict[str, Any]

    def given(self) -> dict[str, Any]:
        """The probe's arguments."""
        return {**vars(self)}

    def window(self, sample: int, ranks: int = RANKS) -> int:
        """In which window a sample is: they are dealt out to the ranks in turn, by number."""
        return sample // ranks // (ACCUMULATION * self.batch_size)


def draw(fresh: Fresh) -> Tokens:
    """Two ranks, three windows of two batches each."""
    batch_size, length = fresh.integer(2, 3), fresh.integer(3, 5)
    features, classes = fresh.integer(4, 6), fresh.integer(3, 5)
    samples = RANKS * WINDOWS * ACCUMULATION * batch_size
    targets = np.array([[fresh.integer(0, classes - 1) for _ in range(length)] for _ in range(samples)])
    targets[fresh.normal(samples, length) > 0.4] = IGNORED
    targets[: RANKS * batch_size : RANKS] = IGNORED
    targets[[1, -1], 0] = fresh.integer(0, classes - 1)  # something counts
    window = RANKS * ACCUMULATION * batch_size
    targets[window : 2 * window] = IGNORED
    config = {
        "epochs": 1,
        "optimizer": "sgd",
        "learning_rate": fresh.uniform(0.2, 0.5),
        "momentum": 0.9,
        "warmup_steps": 0,
        "minimum_ratio": 0.1,
        "accumulation_steps": ACCUMULATION,
        "max_grad_norm": None,
        "log_every_steps": 1,
    }
    return Tokens(fresh.normal(classes, features), fresh.normal(samples, length, features), targets, batch_size, config)


def counting_windows(given: Tokens, ranks: int) -> list[bool]:
    """Of each window on so many ranks, whether any target in it counts."""
    counts = (np.asarray(given.targets) != IGNORED).any(axis=1)
    numbers = np.array([given.window(sample, ranks) for sample in range(len(counts))])
    return [bool(counts[numbers == window].any()) for window in range(int(numbers[-1]) + 1)]


@dataclass(frozen=True)
class Followed:
    """What an epoch makes, and a validation before it."""

    weight: NDArray[np.float64]
    loss: float
    counted: int
    validation: float


def follow(given: Tokens) -> Followed:
    """The weights after the epoch, its mean loss, the targets that count, and the mean loss before it."""
    weight = np.asarray(given.weight, np.float64).copy()
    velocity = np.zeros_like(weight)
    inputs, targets = np.asarray(given.inputs, np.float64), np.asarray(given.targets)
    numbers = np.array([given.window(sample) for sample in range(len(inputs))])
    total, made = 0.0, 0
    counts = targets != IGNORED
    first, _ = cross_entropy(inputs[counts] @ weight.T, targets[counts])
    for window in range(WINDOWS):
        rows = inputs[numbers == window][targets[numbers == window] != IGNORED]
        classes = targets[numbers == window][targets[numbers == window] != IGNORED]
        if not len(rows):
            continue
        losses, slopes = cross_entropy(rows @ weight.T, classes)
        total += float(losses.sum())
        velocity = given.config["momentum"] * velocity + slopes.T @ rows / len(rows)
        weight = weight - rate(given.config, made, WINDOWS) * velocity
        made += 1
    return Followed(weight, total / int(counts.sum()), int(counts.sum()), float(first.mean()))


def cross_entropy(
    logits: NDArray[np.float64], classes: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Losses, and their slopes by the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    rows = np.arange(len(classes))
    losses = -np.log(shares[rows, classes])
    shares[rows, classes] -= 1
    return losses, shares
