"""The truth about Lab 2's small trainings, in NumPy float64: what each step does to a model's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import require, require_between, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.shared.results import is_result

ACCURACY_LOSS = 0.01
"""Over all 1797 digits. Measured over 20 seeds: float16 lost 0.0006 at most, bfloat16 0.0011."""
EPOCHS = 8

Array = NDArray[np.float64]
Run = dict[str, Any]
"""One training of the probe `lab2.train`; its docstring has the keys."""


@dataclass(frozen=True)
class Regression:
    """A linear model and samples: outputs are inputs @ weight.T, the loss half the squared distance to the targets."""

    weight: NDArray[np.float32]
    inputs: NDArray[np.float32]
    targets: NDArray[np.float32]

    @property
    def start(self) -> Array:
        """The weights in float64."""
        return np.asarray(self.weight, dtype=np.float64)

    def train(self, submission: Submission, runs: Sequence[Run]) -> list[dict[str, Any]]:
        """What the probe saw in each run."""
        seen = submission.numeric_probe(
            "lab2.training.train", weight=self.weight, inputs=self.inputs, targets=self.targets, runs=list(runs)
        )
        observed: list[dict[str, Any]] = seen.runs
        for run in observed:
            require(
                bool(run["before"]),
                "train_with_amp() returned without a forward pass of the model",
                "go through the batches of train_loader, as often as epochs says",
            )
        return observed

    def difference(self, weight: Array, part: slice) -> Array:
        """Outputs less targets, shape [samples, outputs]."""
        return np.asarray(self.inputs[part], dtype=np.float64) @ weight.T - self.targets[part]

    def gradient(self, weight: Array, part: slice) -> Array:
        """Of the mean loss over these samples."""
        difference = self.difference(weight, part)
        return difference.T @ np.asarray(self.inputs[part], dtype=np.float64) / len(difference)

    def follow(self, run: Run) -> Truth:
        """Do the run's steps, each with the mean over all samples of its window; a window that overflows does none."""
        weight, rate, factor = self.start, run["rate"], run.get("factor", 1.0)
        limit = run.get("max_grad_norm")
        velocity = np.zeros_like(weight)
        losses: list[float | None] = []
        weights = [weight]
        for _ in range(run.get("epochs", 1)):
            total, samples = 0.0, 0
            for part in windows(run):
                if part.overflows:
                    continue
                count = part.where.stop - part.where.start
                total += factor * 0.5 * float((self.difference(weight, part.where) ** 2).sum())
                samples += count
                gradient = factor * self.gradient(weight, part.where)
                norm = float(np.linalg.norm(gradient))
                if limit is not None and norm > limit:
                    gradient = gradient * (limit / norm)
                velocity = run.get("momentum", 0.0) * velocity + gradient
                weight = weight - rate * velocity
                rate *= run.get("decay", 1.0)
                weights.append(weight)
            losses.append(total / samples if samples else None)
        return Truth(weights=weights, losses=losses)


@dataclass(frozen=True)
class Window:
    """Samples whose gradients make one optimizer step."""

    where: slice
    overflows: bool


@dataclass(frozen=True)
class Truth:
    """What a run must come to."""

    weights: list[Array]
    """Before the first step and after each that is taken."""
    losses: list[float | None]
    """Per epoch, over the samples of the steps taken; None where there were none."""


def windows(run: Run) -> list[Window]:
    """The windows of one epoch."""
    sizes, length = run["sizes"], run.get("accumulation_steps", 1)
    bad = [*run.get("spoiled", []), *run.get("far", [])]
    found, start = [], 0
    for first in range(0, len(sizes), length):
        batches = range(first, min(first + length, len(sizes)))
        stop = start + sum(sizes[index] for index in batches)
        found.append(Window(slice(start, stop), any(index in bad for index in batches)))
        start = stop
    return found


def regression(generator: InputGenerator) -> Regression:
    """Random, of odd sizes; gradients are about 1, so a loss scale of 2^8 cannot overflow in float16, even in a sum."""
    features, outputs = generator.odd(9, 15), generator.odd(3, 7)
    return Regression(
        weight=generator.normal(outputs, features) * np.float32(0.3),
        inputs=generator.normal(64, features),
        targets=generator.normal(64, outputs),
    )


def final_scale(settings: Mapping[str, float], overflows: Sequence[bool]) -> float:
    """The loss scale after these steps, by the rule of `torch.amp.GradScaler`."""
    scale, good = settings["init_scale"], 0
    for overflow in overflows:
        good = 0 if overflow else good + 1
        if overflow:
            scale *= settings["backoff_factor"]
        elif good == settings["growth_interval"]:
            scale, good = scale * settings["growth_factor"], 0
    return scale


class Adam:
    """Steps of `torch.optim.Adam` with its defaults, for one array of weights (Kingma and Ba 2015, algorithm 1)."""

    def __init__(self) -> None:
        self._steps, self._mean, self._square = 0, np.zeros(()), np.zeros(())

    def step(self, gradient: Array) -> Array:
        """What is to be taken from the weights."""
        self._steps += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.999 * self._square + 0.001 * gradient**2
        mean, square = self._mean / (1 - 0.9**self._steps), self._square / (1 - 0.999**self._steps)
        return 1e-3 * mean / (np.sqrt(square) + 1e-8)


def mean_cross_entropy(logits: Array, labels: NDArray[Any]) -> float:
    """Over all samples, in float64."""
    largest = logits.max(axis=1, keepdims=True)
    normaliser = largest[:, 0] + np.log(np.exp(logits - largest).sum(axis=1))
    return float((normaliser - logits[np.arange(len(logits)), labels]).mean())


def relative_error(seen: Any, truth: Array, start: Array) -> float:
    """How far weights are from where they should be, against the way that they should have gone."""
    way = np.linalg.norm(np.ravel(truth) - np.ravel(start))
    return float(np.linalg.norm(np.subtract(seen, np.ravel(truth))) / way)


def require_accurate(submission: Submission, generator: InputGenerator, dtype: str) -> None:
    """Fail unless training digits in `dtype` is as good as in float32, to within 1 %."""
    hidden = generator.odd(61, 83)
    case: dict[str, Any] = {
        "first": generator.normal(hidden, 64) / np.float32(8),
        "second": generator.normal(10, hidden) / np.float32(8),
        "order": np.array(generator.shuffled(list(range(1438)))),
        "epochs": EPOCHS,
    }
    reached = submission.numeric_probe("lab2.training.digits", **case, dtype=dtype).reached
    truth = submission.probe("lab2.training.digits_truth", device="cpu", student=False, **case).reached
    require_between(
        reached,
        truth - ACCURACY_LOSS,
        1.0,
        what=f"accuracy on digits after {EPOCHS} epochs in {dtype}, where float32 reaches {truth:.4f}",
        hint="autocast changes the type of products, not what is learned; are weights kept in float32, and does each "
        "batch make a step?",
    )


def require_ran(seen: Mapping[str, Any], dtype: str, taken: int, skipped: int) -> None:
    """Fail unless a result counts these steps. A check that is not about the result passes over what is none."""
    result = seen["result"]
    if not is_result(result):
        return
    require_equal(result["dtype"], dtype, what="AmpTraining.dtype of train_with_amp()")
    require_equal(
        result["optimizer_steps"],
        taken,
        what=f"AmpTraining.optimizer_steps of train_with_amp() in {dtype}",
        hint="one for each window; a step was skipped where update() made the scale smaller: one that grows is no skip",
    )
    require_equal(result["skipped_steps"], skipped, what=f"AmpTraining.skipped_steps in {dtype}")
