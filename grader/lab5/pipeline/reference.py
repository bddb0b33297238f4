"""What Lab 5's trainer should make of a linear classifier, in float64: learning rates, weights, losses and norms.

And what it makes of it by a common mistake, so that a check can say which one was made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grader.lab5.pipeline.cases import GROWTH, Batches, Settings, Training

Floats: TypeAlias = NDArray[np.float64]
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""PyTorch's defaults of AdamW."""


STEP_MISTAKES = (
    "never_cleared",
    "cleared_each_batch",
    "batches_alike",
    "by_full_windows",
    "by_full_windows_of_samples",
    "losses_summed",
    "clipped_each_batch",
    "clipped_each_parameter",
    "never_clipped",
    "clipped_to_1_if_unlimited",
    "clipped_while_scaled",
    "always_adamw",
    "always_sgd",
    "no_weight_decay",
    "no_momentum",
    "ranks_apart",
)
"""Of the gradient of a window, and of the step along it."""
RATE_MISTAKES = (
    "moves_per_batch",
    "moved_per_batch_before",
    "moves_on_overflow",
    "moved_before_the_step",
    "never_moves",
    "as_long_as_the_batches",
    "as_long_as_full_windows",
    "as_long_as_an_epoch",
)
"""Of the schedule: when it moves, or how many steps it has."""
LOG_MISTAKES = ("next_rate_logged", "clipped_norm_logged", "norm_only_if_clipped")
"""Of what is logged of a step."""


def rate(config: Settings, step: int, total: int) -> float:
    """The learning rate of optimizer step `step` of `total`: linear warm-up, then half a cosine."""
    highest, warmup, lowest = config["learning_rate"], config["warmup_steps"], config["minimum_ratio"]
    if step < warmup:
        return highest * (step + 1) / warmup
    share = 1.0 if step >= total else (step - warmup) / (total - warmup)
    return highest * (lowest + (1 - lowest) * (1 + math.cos(math.pi * share)) / 2)


def rates(training: Training, ranks: int, taken: Sequence[int] | None = None, mistake: str = "") -> list[float]:
    """The learning rate of each step that was taken, and of the next one; by default all windows make a step."""
    size, per_epoch, epochs = training.config["accumulation_steps"], training.batches(ranks), training.config["epochs"]
    each_epoch, total = training.steps_per_epoch(ranks), training.total_steps(ranks)
    length = {
        "as_long_as_the_batches": epochs * per_epoch,
        "as_long_as_full_windows": epochs * max(1, per_epoch // size),
        "as_long_as_an_epoch": each_epoch,
    }.get(mistake, total)
    windows = [*(range(total) if taken is None else taken)]
    moved = []
    for step, window in enumerate([*windows, (windows[-1] if windows else -1) + 1]):
        epoch, place = divmod(window, each_epoch)
        batches = epoch * per_epoch + place * size
        moved.append(
            {
                "moves_per_batch": epoch * per_epoch + min((place + 1) * size, per_epoch),
                "moved_per_batch_before": batches,
                "moves_on_overflow": window,
                "moved_before_the_step": step + 1,
                "never_moves": 0,
            }.get(mistake, step)
        )
    # Windows may have been skipped after the last step.
    in_the_end = {"moves_per_batch": epochs * per_epoch, "moved_per_batch_before": epochs * per_epoch}
    moved[-1] = (in_the_end | {"moves_on_overflow": total}).get(mistake, moved[-1])
    return [rate(training.config, step, length) for step in moved]


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


def simulate(
    training: Training,
    batches_by_rank: Sequence[Batches],
    taken: Sequence[int] | None = None,
    mistake: str = "",
    *,
    observed_rates: Sequence[float] | None = None,
    rank: int = 0,
) -> Outcome:
    """What follows from these batches.

    Args:
        training: samples, weights and configuration.
        batches_by_rank: the numbers of the samples of each batch.
        taken: the windows for which a step is taken, by default all.
        mistake: one of the mistakes above, or none.
        observed_rates: the learning rate of each step, if the schedule is not to say it.
        rank: whose weights they are, in case that the ranks train apart.
    """
    mistaken = replace(training, config=_config(training.config, mistake))
    outcome = Outcome(np.asarray(training.weight, np.float64).copy())
    ranks, gradients = len(batches_by_rank), _Gradients(mistaken, mistake, rank)
    scheduled = observed_rates or rates(training, ranks, taken, mistake if mistake in RATE_MISTAKES else "")
    optimizer, scales = _Optimizer(mistaken.config), _scales(training, taken, training.total_steps(ranks))
    for index, window in enumerate(training.windows_by_rank(batches_by_rank)):
        chosen = [window[rank]] if mistake == "ranks_apart" else window
        samples = [number for batches in chosen for batch in batches for number in batch]
        losses = _slopes(training, outcome.weight, samples)[0]
        outcome.losses.append(float(losses.sum()))
        if taken is not None and index not in taken:
            gradients.forget()
            continue
        made = len(outcome.steps)
        now = scheduled[made] if made < len(scheduled) else math.nan
        gradient, norm = gradients.of(window, outcome.weight, scales[index])
        outcome.weight = optimizer.step(outcome.weight, gradient, now)
        outcome.steps.append(Step(float(losses.mean()), now, norm))
    return _as_logged(outcome, training, mistake, scheduled)


def _config(config: Settings, mistake: str) -> Settings:
    changes: Mapping[str, Settings] = {
        "always_adamw": {"optimizer": "adamw"},
        "always_sgd": {"optimizer": "sgd"},
        "no_weight_decay": {"weight_decay": 0.0},
        "no_momentum": {"momentum": 0.0},
        "never_clipped": {"max_grad_norm": None},
    }
    if mistake == "clipped_to_1_if_unlimited" and config["max_grad_norm"] is None:
        return {**config, "max_grad_norm": 1.0}
    return {**config, **changes.get(mistake, {})}


def _scales(training: Training, taken: Sequence[int] | None, windows: int) -> list[float]:
    """The loss scale in each window; 1 if the loss is not scaled."""
    if training.config.get("dtype") != "float16" or taken is None:
        return [1.0] * windows
    scale = training.config["initial_scale"]
    return [scale_after(scale, taken, window, GROWTH) for window in range(windows)]


def _as_logged(outcome: Outcome, training: Training, mistake: str, scheduled: Sequence[float]) -> Outcome:
    """The steps as a mistake of the log has them."""
    limit = training.config["max_grad_norm"]
    for index, step in enumerate(outcome.steps):
        if mistake == "next_rate_logged" and index + 1 < len(scheduled):
            outcome.steps[index] = replace(step, rate=scheduled[index + 1])
        elif mistake == "clipped_norm_logged" and limit is not None:
            outcome.steps[index] = replace(step, norm=step.norm * min(1.0, limit / (step.norm + 1e-6)))
        elif mistake == "norm_only_if_clipped" and limit is None:
            outcome.steps[index] = replace(step, norm=math.nan)
    return outcome


class _Gradients:
    """The gradient of each window, as one process or several compute it batch by batch."""

    def __init__(self, training: Training, mistake: str, rank: int) -> None:
        self._training, self._mistake, self._rank = training, mistake, rank
        self._left: Floats | None = None
        """What was not cleared."""

    def forget(self) -> None:
        """Not even gradients that are never cleared survive an overflow in a comparable way."""
        self._left = None

    def of(self, window: Sequence[Batches], weight: Floats, scale: float) -> tuple[Floats, float]:
        """The clipped gradient of a window, by rank and batch, and its norm before."""
        mistake, limit = self._mistake, self._training.config["max_grad_norm"]
        chosen = [window[self._rank]] if mistake == "ranks_apart" else window
        last = len(chosen[0]) - 1
        by_rank = [np.zeros_like(weight) if self._left is None else self._left for _ in chosen]
        for place in range(last + 1):
            for index, batches in enumerate(chosen):
                if mistake == "cleared_each_batch":
                    by_rank[index] = np.zeros_like(weight)
                by_rank[index] = by_rank[index] + self._part(batches, place, weight)
            if place == last:
                by_rank = [np.mean(by_rank, axis=0)] * len(chosen)
            if mistake == "clipped_each_batch":
                by_rank = [_clipped(each, limit, scale) for each in by_rank]
        gradient = by_rank[0]
        norm = float(np.linalg.norm(gradient))
        if mistake == "clipped_each_parameter":
            parts = (gradient[:, :-1], gradient[:, -1:])
            gradient = np.concatenate([_clipped(part, limit) for part in parts], axis=1)
        elif mistake == "clipped_while_scaled":
            gradient, norm = _clipped(gradient, limit, scale), norm * scale
        else:
            gradient = _clipped(gradient, limit)
        if mistake == "never_cleared":
            self._left = gradient
        return gradient, norm

    def _part(self, batches: Batches, place: int, weight: Floats) -> Floats:
        """The gradient of one batch's mean loss, with its weight in the window."""
        config, samples = self._training.config, batches[place]
        losses, slopes, inputs = _slopes(self._training, weight, samples)
        count = len(losses)
        share = {
            "batches_alike": 1 / len(batches),
            "by_full_windows": 1 / config["accumulation_steps"],
            "by_full_windows_of_samples": count / (config["accumulation_steps"] * self._training.batch_size),
            "losses_summed": 1.0,
        }.get(self._mistake, count / sum(map(len, batches)))
        gradient: Floats = slopes.T @ inputs / count * share
        return gradient


def _clipped(gradient: Floats, limit: float | None, scale: float = 1.0) -> Floats:
    """As torch.nn.utils.clip_grad_norm_ does it to a gradient that is so many times as large."""
    if limit is None:
        return gradient
    return gradient * min(1.0, limit / (float(np.linalg.norm(gradient)) * scale + 1e-6))


def mean_loss(training: Training, weight: ArrayLike, samples: Sequence[int] | None = None) -> float:
    """The mean over these samples, by default all, with these weights."""
    chosen = range(len(training.classes)) if samples is None else samples
    return float(_slopes(training, np.asarray(weight, np.float64), chosen)[0].mean())


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
