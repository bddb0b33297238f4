"""What Lab 2's small trainings come to, in NumPy float64: right ones, and those with one mistake in them.

There is one simulator for both: without a mistake it is the reference, and with one it leads to the weights by which
that mistake is recognised (`checks/mistakes.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grader.lab2.scaling.cases.steps import DefaultOverflow, Steps
from grader.lab2.scaling.cases.trainings import Regression, Run
from grader.lab2.shared.reference import Adam, FloatArray, LossScale, cross_entropy_gradient, mean_cross_entropy


@dataclass(frozen=True)
class Batch:
    """Samples of one forward and one backward pass."""

    samples: slice
    overflows: bool

    @property
    def size(self) -> int:
        return int(self.samples.stop - self.samples.start)


@dataclass(frozen=True)
class Window:
    """Batches whose gradients make one optimizer step."""

    batches: Sequence[Batch]

    @property
    def samples(self) -> slice:
        return slice(self.batches[0].samples.start, self.batches[-1].samples.stop)

    @property
    def size(self) -> int:
        return sum(batch.size for batch in self.batches)

    @property
    def overflows(self) -> bool:
        return any(batch.overflows for batch in self.batches)


def windows(run: Run) -> list[Window]:
    """The windows of one epoch."""
    ends = np.cumsum([0, *run.sizes]).tolist()
    batches = [Batch(slice(ends[i], ends[i + 1]), i in run.overflowing) for i in range(len(run.sizes))]
    return [Window(batches[first : first + run.window]) for first in range(0, len(batches), run.window)]


def overflows(run: Run) -> list[bool]:
    """Of each window of the training, whether it overflows."""
    return [window.overflows for window in windows(run)] * run.epochs


def start(case: Regression) -> FloatArray:
    """The weights before a training."""
    return np.asarray(case.weight, dtype=np.float64)


def difference(case: Regression, weight: FloatArray, samples: slice) -> FloatArray:
    """Outputs less targets, shape [samples, outputs]."""
    return np.asarray(case.inputs[samples], dtype=np.float64) @ weight.T - case.targets[samples]


def gradient_of(case: Regression, weight: FloatArray, samples: slice) -> FloatArray:
    """Of the mean loss over these samples."""
    distance = difference(case, weight, samples)
    return distance.T @ np.asarray(case.inputs[samples], dtype=np.float64) / len(distance)


def first_norm(case: Regression, run: Run) -> float:
    """The norm of the gradient of the run's first window."""
    return run.loss_factor * float(np.linalg.norm(gradient_of(case, start(case), windows(run)[0].samples)))


@dataclass(frozen=True)
class Trajectory:
    """What a training comes to."""

    weights: list[FloatArray]
    """Before the first step and after each that is taken."""
    losses: list[float | None]
    """Per epoch, over the samples of the steps taken; None where there were none."""

    @property
    def end(self) -> FloatArray:
        """The weights afterwards."""
        return self.weights[-1]


def follow(case: Regression, run: Run, mistake: str = "") -> Trajectory:
    """Do the run's steps, each with the mean over all samples of its window; a window that overflows does none.

    `mistake` is a key of `checks.mistakes.MISTAKES`: what is done wrong in all steps.
    """
    weight, rate, decay = start(case), run.rate, run.decay or 1.0
    velocity, gradient = np.zeros_like(weight), np.zeros_like(weight)
    scaling = LossScale(**(run.scaler or {}))
    weights: list[FloatArray] = [weight]
    losses: list[float | None] = []
    for _ in range(run.epochs):
        total, samples, late_decay = 0.0, 0, 1.0
        for window in windows(run):
            if mistake == "last_window_dropped" and len(window.batches) < run.window:
                continue
            scale = scaling.scale if run.dtype == "float16" else 1.0
            # What is left is unscaled already when the next, scaled gradients are added to it.
            left = gradient / scale if mistake == "never_cleared" else np.zeros_like(gradient)
            gradient = _accumulated(case, run, window, weight, left, mistake)
            overflow = not np.isfinite(gradient).all()
            scaling.update(overflow)
            if mistake == "step_with_zeros" and overflow:
                gradient, overflow = np.zeros_like(gradient), False
            if not overflow:
                total += run.loss_factor * 0.5 * float((difference(case, weight, window.samples) ** 2).sum())
                samples += window.size
                if mistake != "never_clipped":
                    gradient = _clipped(gradient, run, scale if mistake == "clipped_while_scaled" else 1.0)
                velocity = run.momentum * velocity + gradient
                weight = weight - rate * velocity
                weights.append(weight)
            if not overflow or mistake == "schedule_ignores_skips":
                if mistake == "schedule_at_the_end":
                    late_decay *= decay
                else:
                    rate *= decay
        rate *= late_decay
        losses.append(total / samples if samples else None)
    return Trajectory(weights, losses)


def _accumulated(
    case: Regression, run: Run, window: Window, weight: FloatArray, left: FloatArray, mistake: str
) -> FloatArray:
    """The gradients of a window's batches, added to what is `left`; NaN from the first batch on that overflows."""
    total = left
    for batch in window.batches:
        if mistake == "cleared_each_batch":
            total = np.zeros_like(total)
        if batch.overflows:
            total = np.full_like(total, np.nan)
        else:
            share = _share(run, window, batch, mistake)
            total = total + share * (run.loss_factor * gradient_of(case, weight, batch.samples))
        if mistake == "clipped_each_batch":
            total = _clipped(total, run, 1.0)
    return total


def _share(run: Run, window: Window, batch: Batch, mistake: str) -> float:
    """By what a batch's mean loss is multiplied."""
    share = batch.size / window.size
    shares = {
        "summed": 1.0,
        "all_alike": 1 / len(window.batches),
        "by_full_windows": 1 / run.window,
        "divided_twice": share / run.window,
    }
    return shares.get(mistake, share)


def _clipped(gradient: FloatArray, run: Run, scale: float) -> FloatArray:
    """Clipped as the run asks for, while it is multiplied by `scale`."""
    norm, limit = scale * float(np.linalg.norm(gradient)), run.max_grad_norm
    return gradient if limit is None or norm <= limit or not np.isfinite(norm) else gradient * (limit / norm)


def first_scale(run: Run) -> float:
    """The loss scale of float16 in the first step."""
    return LossScale(**(run.scaler or {})).scale


def final_scale(run: Run) -> float:
    """The loss scale of float16 after the training."""
    return LossScale(**(run.scaler or {})).after(overflows(run))


def taken_loss(case: DefaultOverflow) -> float:
    """Mean cross entropy of the untrained classifier, over the samples of the batches that do not overflow."""
    starts = np.cumsum([0, *case.steps.sizes])
    taken = [
        row
        for index, overflow in enumerate(case.overflows)
        if not overflow
        for row in range(*starts[index : index + 2])
    ]
    inputs, weight = (np.asarray(array, dtype=np.float64) for array in (case.steps.inputs[taken], case.steps.weight))
    return mean_cross_entropy(inputs @ weight.T, case.steps.labels[taken])


def after_one_step(case: Steps) -> FloatArray:
    """The classifier's weights after a step of Adam on all samples."""
    weight, inputs = (np.asarray(array, dtype=np.float64) for array in (case.weight, case.inputs))
    return weight - Adam().step(cross_entropy_gradient(weight, inputs, case.labels))
