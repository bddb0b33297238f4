"""What Lab 5's trainer should make of a linear classifier, in float64: learning rates, weights, losses and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grader.lab5.pipeline.cases import Batches, Settings, Training

Floats: TypeAlias = NDArray[np.float64]
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""PyTorch's defaults of AdamW."""


def rate(config: Settings, step: int, total: int) -> float:
    """The learning rate of optimizer step `step` of `total`: linear warm-up, then half a cosine."""
    highest, warmup, lowest = config["learning_rate"], config["warmup_steps"], config["minimum_ratio"]
    if step < warmup:
        return highest * (step + 1) / warmup
    share = 1.0 if step >= total else (step - warmup) / (total - warmup)
    return highest * (lowest + (1 - lowest) * (1 + math.cos(math.pi * share)) / 2)


def scale_after(scale: float, taken: Sequence[int], windows: int, growth: int) -> float:
    """The loss scale after so many windows of which those at `taken` made a step: PyTorch's rule."""
    row = 0
    for index in range(windows):
        if index not in taken:
            scale, row = scale / 2, 0
        elif (row := row + 1) == growth:
            scale, row = scale * 2, 0
    return scale


def cross_entropy(logits: Floats, classes: NDArray[np.integer]) -> tuple[Floats, Floats]:
    """Losses, and their slopes by the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    rows = np.arange(len(classes))
    losses = -np.log(shares[rows, classes])
    shares[rows, classes] -= 1
    return losses, shares


@dataclass(frozen=True)
class Step:
    """An optimizer step that was taken."""

    loss: float
    """Mean over its samples, before it."""
    rate: float
    norm: float
    """Of the gradient, before clipping."""


@dataclass
class Outcome:
    """What training makes: the weights, the summed loss of each window, and each step that was taken."""

    weight: Floats
    losses: list[float] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def simulate(training: Training, batches_by_rank: Sequence[Batches], taken: Sequence[int] | None = None) -> Outcome:
    """What follows from these batches; steps are taken for the windows at `taken`, by default for all."""
    outcome = Outcome(np.asarray(training.weight, np.float64).copy())
    optimizer, total = _Optimizer(training.config), training.total_steps(len(batches_by_rank))
    limit = training.config["max_grad_norm"]
    for index, samples in enumerate(training.windows(batches_by_rank)):
        losses, slopes, inputs = _slopes(training, outcome.weight, samples)
        outcome.losses.append(float(losses.sum()))
        if taken is not None and index not in taken:
            continue
        gradient = slopes.T @ inputs / len(losses)
        norm = float(np.linalg.norm(gradient))
        if limit is not None:
            gradient = gradient * min(1.0, limit / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_ does
        now = rate(training.config, len(outcome.steps), total)
        outcome.weight = optimizer.step(outcome.weight, gradient, now)
        outcome.steps.append(Step(float(losses.mean()), now, norm))
    return outcome


def mean_loss(training: Training, weight: ArrayLike) -> float:
    """The mean over all samples with these weights."""
    samples = range(len(training.classes))
    return float(_slopes(training, np.asarray(weight, np.float64), samples)[0].mean())


def _slopes(training: Training, weight: Floats, samples: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    inputs = np.asarray(training.inputs, np.float64)[list(samples)]
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    return *cross_entropy(inputs @ weight.T, np.asarray(training.classes)[list(samples)]), inputs


class _Optimizer:
    """SGD with momentum and weight decay, or AdamW, as PyTorch documents them."""

    def __init__(self, config: Settings) -> None:
        self.config, self.made = config, 0
        self.mean: Floats = np.zeros(())
        self.square: Floats = np.zeros(())

    def step(self, weight: Floats, gradient: Floats, rate: float) -> Floats:
        decay = self.config.get("weight_decay", 0.0)
        self.made += 1
        if self.config["optimizer"] == "sgd":
            self.mean = self.config["momentum"] * self.mean + gradient + decay * weight
            return weight - rate * self.mean
        first, second = _BETAS
        self.mean = first * self.mean + (1 - first) * gradient
        self.square = second * self.square + (1 - second) * gradient**2
        way = self.mean / (1 - first**self.made) / (np.sqrt(self.square / (1 - second**self.made)) + _EPSILON)
        return weight * (1 - rate * decay) - rate * way
