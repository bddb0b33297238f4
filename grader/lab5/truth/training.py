"""What Lab 5's trainer should make of a linear classifier, in float64: learning rates, weights, losses and norms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.run.input_generator import InputGenerator

Array = NDArray[np.float64]
BATCHES = 5
"""Of each rank in an epoch."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
    "decay": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
}
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""PyTorch's defaults of AdamW."""


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


def cross_entropy(logits: Array, classes: NDArray[Any]) -> tuple[Array, Array]:
    """Losses, and their slopes by the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    rows = np.arange(len(classes))
    losses = -np.log(shares[rows, classes])
    shares[rows, classes] -= 1
    return losses, shares


@dataclass(frozen=True)
class Training:
    """Some epochs: samples, a model whose last column of weights is the bias, and a configuration."""

    weight: Any
    inputs: Any
    classes: Any
    batch_size: int
    config: dict[str, Any]

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """Of a probe, with these keys of the configuration changed."""
        return {**vars(self), "config": {**self.config, **changes}}

    def described(self) -> str:
        """In words, for messages."""
        names = ("epochs", "accumulation_steps", "max_grad_norm", "optimizer", "weight_decay")
        settings = ", ".join(f"{name}={self.config[name]}" for name in names if name in self.config)
        return f"{len(self.classes)} samples in batches of {self.batch_size}; {settings}"

    def batches(self, ranks: int) -> int:
        """Of one rank in one epoch."""
        return math.ceil(math.ceil(len(self.inputs) / ranks) / self.batch_size)

    def steps_per_epoch(self, ranks: int) -> int:
        return math.ceil(self.batches(ranks) / int(self.config["accumulation_steps"]))

    def total_steps(self, ranks: int) -> int:
        return int(self.config["epochs"]) * self.steps_per_epoch(ranks)

    def windows(self, seen: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
        """The samples behind each optimizer step, of each rank some batches in turn, fewer at the end of an epoch.

        Args:
            seen: per rank, the samples of each batch that passed the model.
        """
        per_epoch, size = self.batches(len(seen)), self.config["accumulation_steps"]
        found = []
        for epoch in range(0, len(seen[0]), per_epoch):
            last = min(epoch + per_epoch, len(seen[0]))
            for start in range(epoch, last, size):
                stop = min(start + size, last)
                found.append([number for rank in seen for batch in rank[start:stop] for number in batch])
        return found

    def follow(self, seen: Sequence[Sequence[Sequence[int]]], taken: Sequence[int] | None = None) -> Followed:
        """What follows from these batches; steps are taken for the windows at `taken`, by default for all."""
        found = Followed(np.asarray(self.weight, np.float64).copy())
        optimizer, total = _Optimizer(self.config), self.total_steps(len(seen))
        limit = self.config["max_grad_norm"]
        for index, samples in enumerate(self.windows(seen)):
            losses, slopes, inputs = self._slopes(found.weight, samples)
            found.losses.append(float(losses.sum()))
            if taken is not None and index not in taken:
                continue
            gradient = slopes.T @ inputs / len(losses)
            norm = float(np.linalg.norm(gradient))
            if limit is not None:
                gradient = gradient * min(1.0, limit / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_ does
            now = rate(self.config, len(found.steps), total)
            found.weight = optimizer.step(found.weight, gradient, now)
            found.steps.append(Step(float(losses.mean()), now, norm))
        return found

    def loss(self, weight: Array) -> float:
        """The mean over all samples with these weights."""
        return float(self._slopes(np.asarray(weight, np.float64), range(len(self.classes)))[0].mean())

    def _slopes(self, weight: Array, samples: Sequence[int]) -> tuple[Array, Array, Array]:
        inputs = np.asarray(self.inputs, np.float64)[list(samples)]
        inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
        return *cross_entropy(inputs @ weight.T, np.asarray(self.classes)[list(samples)]), inputs


@dataclass(frozen=True)
class Step:
    """An optimizer step that was taken."""

    loss: float
    """Mean over its samples, before it."""
    rate: float
    norm: float
    """Of the gradient, before clipping."""


@dataclass
class Followed:
    """What training makes: the weights, the summed loss of each window, and each step that was taken."""

    weight: Array
    losses: list[float] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


class _Optimizer:
    """SGD with momentum and weight decay, or AdamW, as PyTorch documents them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config, self.made = config, 0
        self.mean: Any = 0.0
        self.square: Any = 0.0

    def step(self, weight: Array, gradient: Array, rate: float) -> Array:
        decay = self.config.get("weight_decay", 0.0)
        self.made += 1
        if self.config["optimizer"] == "sgd":
            self.mean = self.config["momentum"] * self.mean + gradient + decay * weight
            moved: Array = weight - rate * self.mean
            return moved
        first, second = _BETAS
        self.mean = first * self.mean + (1 - first) * gradient
        self.square = second * self.square + (1 - second) * gradient**2
        way = self.mean / (1 - first**self.made) / (np.sqrt(self.square / (1 - second**self.made)) + _EPSILON)
        decayed: Array = weight * (1 - rate * decay) - rate * way
        return decayed


def draw(
    generator: InputGenerator, *, ranks: int = 1, epochs: int = 2, last: str = "smaller", **settings: Any
) -> Training:
    """A training whose windows do not fill its epochs, with clipping, warm-up and momentum, unless told otherwise.

    Args:
        ranks: on how many it will be.
        epochs: how many.
        last: whether an epoch's last batch is "full" or "smaller"; or "padded": smaller, and one sample comes twice.
        settings: of the configuration.
    """
    batch_size, features, outputs = generator.integer(4, 6), generator.odd(5, 9), generator.integer(3, 5)
    samples = ranks * (
        (BATCHES - 1) * batch_size + (batch_size if last == "full" else generator.integer(1, batch_size - 2))
    )
    samples -= last == "padded"
    config = {
        **OPTIMIZERS["momentum"],
        "epochs": epochs,
        "learning_rate": generator.uniform(0.08, 0.16),
        "warmup_steps": 2,
        "minimum_ratio": 0.1,
        "accumulation_steps": 3,
        "max_grad_norm": generator.uniform(0.15, 0.25),
        "keep_checkpoints": 3,
        **settings,
    }
    classes = np.array([generator.integer(0, outputs - 1) for _ in range(samples)])
    # Not all alike: the batches' own gradients must differ, and many must be longer than the limit.
    inputs = generator.normal(samples, features) * np.linspace(0.3, 2.0, samples, dtype=np.float32)[:, None]
    return Training(generator.normal(outputs, features + 1), inputs, classes, batch_size, config)


def with_optimizer(training: Training, name: str) -> Training:
    """The same with another of OPTIMIZERS. AdamW divides a gradient by its own size: smaller rates."""
    slower = {"learning_rate": training.config["learning_rate"] / 8} if name == "adamw" else {}
    return replace(training, config={**training.config, **OPTIMIZERS[name], **slower})
