"""Epochs of any kind, and in float64 what they make of a linear model: targets, windows, clipping and optimizers meet.

Not for autocast, where the trainer decides which steps are left out: `training.py` follows that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradebox.fresh import Fresh
from grader.lab5.truth.tokens import IGNORED, cross_entropy
from grader.lab5.truth.training import Array, rate, windows
from grader.shared.cases import full_rows

BATCHES = 4
"""Of each rank in an epoch."""
DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "ranks": (1, 2),
    "window": (1, 2, 3, 6),
    "targets": ("numbers", "classes", "some", "a batch without"),
    "limit": (None, 1e6, 0.25),
    "optimizer": ("momentum", "decay", "adamw"),
    "dtype": ("float64", "float32"),
    "last": ("full", "smaller", "padded"),
    "epochs": (1, 2),
    "log": (1, 2),
}
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
    "decay": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
}
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""PyTorch's defaults of AdamW."""


@dataclass(frozen=True)
class Epochs:
    """Some epochs over samples that come by number."""

    ranks: int
    weight: Any
    """Its last column is the bias."""
    inputs: Any
    targets: Any
    """Numbers [samples, outputs], or classes [samples], of which IGNORED do not count."""
    batch_size: int
    dtype: str
    """Of the parameters."""
    config: dict[str, Any]

    def given(self) -> dict[str, Any]:
        """The probe's arguments."""
        return {name: value for name, value in vars(self).items() if name != "ranks"}

    def told(self) -> str:
        """In words, for messages."""
        ignored = "" if self._numbers else f", {int((np.asarray(self.targets) == IGNORED).sum())} of them {IGNORED}"
        kind = "numbers" if self._numbers else "classes"
        names = ("epochs", "accumulation_steps", "max_grad_norm", "log_every_steps", *_OPTIMIZERS["decay"])
        settings = ", ".join(f"{name}={self.config[name]}" for name in names if name in self.config)
        return (
            f"train_epoch() on {self.ranks} rank{'s' if self.ranks > 1 else ''}, {self.dtype}, {len(self.targets)} "
            f"targets that are {kind}{ignored}, in batches of {self.batch_size}; {settings}"
        )

    @property
    def _numbers(self) -> bool:
        return np.asarray(self.targets).ndim == 2

    def batches(self) -> list[list[list[int]]]:
        """The samples of each rank's batches in an epoch: by number, dealt out to the ranks in turn."""
        order = list(range(len(self.targets)))
        order += order[: -len(order) % self.ranks]
        own = [order[rank :: self.ranks] for rank in range(self.ranks)]
        size = self.batch_size
        return [[each[start : start + size] for start in range(0, len(each), size)] for each in own]

    def follow(self, *, beyond: float = 1e-6) -> Followed:
        """What the epochs make in float64; `beyond` as for `training.Sgd`."""
        size, epochs = self.config["accumulation_steps"], self.config["epochs"]
        each_epoch = math.ceil(BATCHES / size)
        inputs = np.asarray(self.inputs, np.float64)
        inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
        model = _Optimizer(np.asarray(self.weight, np.float64).copy(), self.config)
        found = Followed(model.weight)
        all_epochs = [batches * epochs for batches in self.batches()]
        for number, samples in enumerate(windows(all_epochs, BATCHES, size)):
            if number % each_epoch == 0:
                found.epochs.append(Sums())
            sums = found.epochs[-1]
            losses, slopes, rows_of = self._slopes(model.weight, inputs[samples], np.asarray(self.targets)[samples])
            if not len(losses):
                sums.skipped += 1
                continue
            gradient = slopes.T @ rows_of / len(losses)
            norm, limit = float(np.linalg.norm(gradient)), self.config["max_grad_norm"]
            if limit is not None:
                gradient = gradient * min(1.0, limit / (norm + beyond))
            now = rate(self.config, len(found.steps), epochs * each_epoch)
            model.step(gradient, now)
            found.steps.append((float(losses.mean()), now, norm))
            sums.taken += 1
            sums.samples += len(losses)
            sums.loss += float(losses.sum())
        found.weight = model.weight
        return found

    def _slopes(self, weight: Array, inputs: Array, targets: Any) -> tuple[Array, Array, Array]:
        """Of what counts: losses, their slopes by the outputs, and the inputs."""
        if self._numbers:
            apart = inputs @ weight.T - targets
            return 0.5 * np.square(apart).sum(axis=1), apart, inputs
        counts = targets != IGNORED
        losses, slopes = cross_entropy(inputs[counts] @ weight.T, targets[counts])
        return losses, slopes, inputs[counts]


@dataclass
class Sums:
    """What an `EpochResult` should say."""

    taken: int = 0
    skipped: int = 0
    samples: int = 0
    loss: float = 0.0


@dataclass
class Followed:
    """Weights, epochs, and of each step that was made: mean loss, learning rate, norm before clipping."""

    weight: Array
    epochs: list[Sums] = field(default_factory=list)
    steps: list[tuple[float, float, float]] = field(default_factory=list)


@dataclass
class _Optimizer:
    """SGD with momentum and weight decay, or AdamW, as PyTorch documents them."""

    weight: Array
    config: dict[str, Any]
    made: int = 0

    def __post_init__(self) -> None:
        self.mean, self.square = np.zeros_like(self.weight), np.zeros_like(self.weight)

    def step(self, gradient: Array, rate: float) -> None:
        decay = self.config.get("weight_decay", 0.0)
        self.made += 1
        if self.config["optimizer"] == "sgd":
            self.mean = self.config["momentum"] * self.mean + gradient + decay * self.weight
            self.weight = self.weight - rate * self.mean
            return
        first, second = _BETAS
        self.mean = first * self.mean + (1 - first) * gradient
        self.square = second * self.square + (1 - second) * gradient**2
        way = self.mean / (1 - first**self.made) / (np.sqrt(self.square / (1 - second**self.made)) + _EPSILON)
        self.weight = self.weight * (1 - rate * decay) - rate * way


def draw(fresh: Fresh) -> list[Epochs]:
    """Four runs, some of them on one rank and the others on two."""
    return [_run(fresh, row) for row in full_rows(fresh, DIMENSIONS, 4, _can_be)]


def _can_be(row: Mapping[str, Any]) -> bool:
    """One rank has all samples, and AdamW divides a gradient by its own size: rounding would decide its first steps.

    And something is logged, however long the windows are.
    """
    return (
        (row["ranks"], row["last"]) != (1, "padded")
        and (row["optimizer"], row["dtype"]) != ("adamw", "float32")
        and row["epochs"] * math.ceil(BATCHES / row["window"]) >= row["log"]
    )


def _run(fresh: Fresh, row: dict[str, Any]) -> Epochs:
    ranks, batch_size = row["ranks"], fresh.integer(3, 5)
    features, outputs = fresh.integer(4, 6), fresh.integer(3, 4)
    last = batch_size if row["last"] == "full" else fresh.integer(1, batch_size - 1)
    samples = ranks * ((BATCHES - 1) * batch_size + last)
    if row["last"] == "padded":
        samples -= 1  # one is drawn twice, so that all ranks have as many
    targets: Any = fresh.normal(samples, outputs) * 2
    if row["targets"] != "numbers":
        targets = np.array([fresh.integer(0, outputs - 1) for _ in range(samples)])
        if row["targets"] == "some":
            targets[fresh.normal(samples) > 0.7] = IGNORED
            targets[2::3] = IGNORED  # in nearly every window
        elif row["targets"] == "a batch without":
            targets[: ranks * batch_size : ranks] = IGNORED  # the first of rank 0
    adamw = row["optimizer"] == "adamw"
    return Epochs(
        ranks=ranks,
        weight=fresh.normal(outputs, features + 1),
        inputs=fresh.normal(samples, features),
        targets=targets,
        batch_size=batch_size,
        dtype=row["dtype"],
        config={
            **_OPTIMIZERS[row["optimizer"]],
            "epochs": row["epochs"],
            "learning_rate": fresh.uniform(0.01, 0.02) if adamw else fresh.uniform(0.04, 0.08),
            "warmup_steps": fresh.integer(0, 2),
            "minimum_ratio": 0.1,
            "accumulation_steps": row["window"],
            "max_grad_norm": row["limit"],
            "log_every_steps": row["log"],
        },
    )
