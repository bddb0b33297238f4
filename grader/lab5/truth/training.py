"""The trainer's truth in float64: which learning rate a step has, and what weights follow from the batches seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.fresh import Fresh

Array = NDArray[np.float64]


def rate(config: Mapping[str, Any], step: int, total: int) -> float:
    """The learning rate of optimizer step `step` of `total`: linear warm-up, then half a cosine."""
    highest, warmup, lowest = config["learning_rate"], config["warmup_steps"], config["minimum_ratio"]
    if step < warmup:
        return float(highest * (step + 1) / warmup)
    share = 1.0 if step >= total else (step - warmup) / (total - warmup)
    return float(highest * (lowest + (1 - lowest) * (1 + math.cos(math.pi * share)) / 2))


def scale_after(scale: float, taken: Sequence[int], windows: int, growth: int) -> float:
    """The loss scale after so many windows of which those at `taken` made a step: PyTorch's rule."""
    row = 0
    for index in range(windows):
        if index not in taken:
            scale, row = scale / 2, 0
        elif (row := row + 1) == growth:
            scale, row = scale * 2, 0
    return scale


@dataclass
class Sgd:
    """A linear model under SGD with momentum, half squared distances, and gradients clipped to a norm.

    The last column of the weight is the bias: the last of the inputs is always 1.
    """

    weight: Array
    momentum: float
    longest: float | None
    beyond: float = 1e-6
    """Added to the norm that a gradient is divided by: so by `clip_grad_norm_`; nothing where it is clipped exactly."""
    velocity: Array = field(init=False)
    norms: list[float] = field(default_factory=list)
    """Of the gradients, before clipping."""
    losses: list[float] = field(default_factory=list)
    """Summed over the samples of each step, as they were before it; of steps that were left out, too."""

    def __post_init__(self) -> None:
        self.weight = np.asarray(self.weight, dtype=np.float64).copy()
        self.velocity = np.zeros_like(self.weight)

    def look(self, inputs: Array, targets: Array) -> Array:
        """How far the outputs are from the targets; notes the loss."""
        apart: Array = inputs @ self.weight.T - targets
        self.losses.append(0.5 * float(np.square(apart).sum()))
        return apart

    def step(self, inputs: Array, targets: Array, rate: float) -> None:
        """One step on the mean over all these samples."""
        apart = self.look(inputs, targets)
        gradient = apart.T @ inputs / len(inputs)
        norm = float(np.linalg.norm(gradient))
        self.norms.append(norm)
        if self.longest is not None:
            gradient = gradient * min(1.0, self.longest / (norm + self.beyond))
        self.velocity = self.momentum * self.velocity + gradient
        self.weight = self.weight - rate * self.velocity


def windows(seen: Sequence[Sequence[Sequence[int]]], batches_per_epoch: int, size: int) -> list[list[int]]:
    """The samples behind each optimizer step: of each rank, `size` batches in turn, fewer at the end of an epoch."""
    found = []
    for epoch in range(0, len(seen[0]), batches_per_epoch):
        last = min(epoch + batches_per_epoch, len(seen[0]))
        for start in range(epoch, last, size):
            stop = min(start + size, last)
            found.append([number for rank in seen for batch in rank[start:stop] for number in batch])
    return found


@dataclass(frozen=True)
class Case:
    """A regression, and a configuration that uses everything at once."""

    weight: Any
    inputs: Any
    targets: Any
    batch_size: int
    config: dict[str, Any]

    def given(self, **changes: Any) -> dict[str, Any]:
        """The probe's arguments, with these keys of the configuration changed."""
        return {
            "weight": self.weight,
            "inputs": self.inputs,
            "targets": self.targets,
            "batch_size": self.batch_size,
            "config": {**self.config, **changes},
        }

    def batches(self, ranks: int) -> int:
        """Of one rank in one epoch."""
        return math.ceil(math.ceil(len(self.inputs) / ranks) / self.batch_size)

    def total_steps(self, ranks: int) -> int:
        return int(self.config["epochs"] * math.ceil(self.batches(ranks) / self.config["accumulation_steps"]))

    def follow(
        self, steps: Sequence[Sequence[int]], total: int, taken: Sequence[int] | None = None, beyond: float = 1e-6
    ) -> Sgd:
        """The weights after these steps, computed in float64; only those at `taken` are made, by default all."""
        model = Sgd(self.weight, self.config["momentum"], self.config["max_grad_norm"], beyond)
        inputs, targets = np.asarray(self.inputs, np.float64), np.asarray(self.targets, np.float64)
        inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
        made = 0
        for index, numbers in enumerate(steps):
            if taken is None or index in taken:
                model.step(inputs[numbers], targets[numbers], rate(self.config, made, total))
                made += 1
            else:
                model.look(inputs[numbers], targets[numbers])
        return model

    def loss(self, weight: Array) -> float:
        """The mean over all samples with these weights."""
        model = Sgd(weight, 0.0, None)
        inputs = np.concatenate([np.asarray(self.inputs, np.float64), np.ones((len(self.inputs), 1))], axis=1)
        model.look(inputs, np.asarray(self.targets, np.float64))
        return model.losses[0] / len(inputs)


def case(fresh: Fresh, *, ranks: int = 1, epochs: int = 2, accumulation: int = 3) -> Case:
    """Each epoch ends with a window of two batches instead of three, and with a batch smaller than the others."""
    batch_size, features, outputs = fresh.integer(4, 6), fresh.odd(5, 9), fresh.integer(2, 4)
    last = fresh.integer(1, batch_size - 2)
    samples = ranks * (4 * batch_size + last)
    weight, inputs = fresh.normal(outputs, features + 1), fresh.normal(samples, features)
    return Case(
        weight=weight,
        inputs=inputs,
        # Not all alike: the batches' own gradients must differ, and some must be longer than the limit.
        targets=fresh.normal(samples, outputs) * np.linspace(0.2, 3.0, samples, dtype=np.float32)[:, None],
        batch_size=batch_size,
        config={
            "epochs": epochs,
            "optimizer": "sgd",
            "learning_rate": fresh.uniform(0.04, 0.08),
            "momentum": 0.9,
            "warmup_steps": 2,
            "minimum_ratio": 0.1,
            "accumulation_steps": accumulation,
            "max_grad_norm": fresh.uniform(0.5, 0.9),
            "keep_checkpoints": 3,
        },
    )
