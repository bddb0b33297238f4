"""What Lab 2's small trainings come to, in NumPy float64: right ones, and those with one mistake in them.

There is one simulator for both: without a mistake it is the reference, and with one it leads to the weights by which
that mistake is recognised (`checks/mistakes.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grader.lab2.scaling.cases.steps import DefaultOverflow, Steps
from grader.lab2.scaling.cases.trainings import Regression, Run
from grader.lab2.shared.reference import (
    Adam,
    FloatArray,
    LossScale,
    cross_entropy_gradient,
    mean_cross_entropy,
    to_bfloat16,
)

OVERFLOWING_INPUT = 1e5
"""What the probes plant for an overflow in forward: infinite in float16 alone."""
DISTANT_TARGET = 1e7
"""The same for one in backward."""
_LARGEST_FLOAT16 = 65519.0
"""What is larger is rounded to infinity."""


@dataclass(frozen=True)
class Batch:
    """Samples of one forward and one backward pass."""

    samples: slice
    overflows: bool
    overflows_in_forward: bool

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

    @property
    def overflows_in_forward(self) -> bool:
        """So that the loss is no number."""
        return any(batch.overflows_in_forward for batch in self.batches)


def windows(run: Run) -> list[Window]:
    """The windows of one epoch."""
    ends = np.cumsum([0, *run.sizes]).tolist()
    batches = [
        Batch(slice(ends[i], ends[i + 1]), i in run.overflowing, i in run.overflows_in_forward)
        for i in range(len(run.sizes))
    ]
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
    skipped: int
    """Steps."""
    scheduler_steps: int
    final_scale: float
    """Of float16."""
    moved: list[bool]
    """Of each batch, whether the weights changed before the next one."""

    @property
    def end(self) -> FloatArray:
        """The weights afterwards."""
        return self.weights[-1]


def follow(case: Regression, run: Run, mistake: str = "") -> Trajectory:
    """Do the run's steps, each with the mean over all samples of its window; a window that overflows does none.

    `mistake` is a key of `checks.mistakes.MISTAKES`: what is done wrong in all steps.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a mistake may lead there
        finite = mistake in ("forward_in_float32", "not_scaled")
        return _follow(_as_trained(case, run) if finite else case, run, mistake)


def _as_trained(case: Regression, run: Run) -> Regression:
    """The samples as they are when nothing is infinite: those of batches that overflow in float16 are large."""
    inputs, targets = case.inputs.copy(), case.targets.copy()
    ends = np.cumsum([0, *run.sizes])
    for positions, values in ((run.overflows_in_forward, inputs), (run.overflows_in_backward, targets[:, -1])):
        for position in positions:
            values[ends[position] : ends[position + 1]] = OVERFLOWING_INPUT if values is inputs else DISTANT_TARGET
    return replace(case, inputs=inputs, targets=targets)


def _follow(case: Regression, run: Run, mistake: str) -> Trajectory:
    weight, rate, decay = start(case), run.rate, run.decay or 1.0
    velocity, gradient = np.zeros_like(weight), np.zeros_like(weight)
    scaling = LossScale(**(run.scaler or {}))
    weights: list[FloatArray] = [weight]
    losses: list[float | None] = []
    skipped, scheduler_steps, moved = 0, 0, []
    is_cast = mistake == "model_cast" and run.dtype == "bfloat16"
    if is_cast:
        case = replace(case, inputs=to_bfloat16(case.inputs).astype(np.float32))
        weight = to_bfloat16(weight)
    for _ in range(run.epochs):
        total, samples, late_decay = 0.0, 0, 1.0
        for window in windows(run):
            is_short = len(window.batches) < run.window
            if mistake == "last_window_dropped" and is_short:
                moved += [False] * len(window.batches)
                continue
            scale = scaling.scale if run.dtype == "float16" else 1.0
            # What is left is unscaled already when the next, scaled gradients are added to it.
            left = gradient / scale if mistake == "never_cleared" else np.zeros_like(gradient)
            if mistake == "unscaled_each_batch" and run.dtype == "float16":
                gradient = _unscaled_each_batch(case, run, window, weight, scaling)
            else:
                gradient = _accumulated(case, run, window, weight, left, mistake)
            overflow = not np.isfinite(gradient).all() and mistake != "not_scaled"
            scaling.update(overflow)
            skipped += overflow
            before = weight
            counts = mistake == "skipped_losses_counted" and not window.overflows_in_forward
            if not overflow or counts:
                of_loss = scale if mistake == "scaled_loss_reported" else 1.0
                total += of_loss * run.loss_factor * 0.5 * _squares(_as_trained(case, run), weight, window.samples)
                samples += window.size
            clips = mistake != "never_clipped" and not (mistake == "short_window_not_clipped" and is_short)
            if not overflow and clips:
                gradient = _clipped_by(mistake, gradient, run, scale)
            if not overflow or mistake == "step_with_zeros":
                velocity = run.momentum * velocity + (np.zeros_like(gradient) if overflow else gradient)
                velocity = to_bfloat16(velocity) if is_cast else velocity
                weight = weight - rate * velocity
                weight = to_bfloat16(weight) if is_cast else weight
                weights.append(weight)
            moved += [*[False] * (len(window.batches) - 1), not np.array_equal(weight, before)]
            if not overflow or mistake == "schedule_ignores_skips":
                steps = len(window.batches) if mistake == "schedule_per_batch" else 1
                scheduler_steps += steps
                if mistake == "schedule_at_the_end":
                    late_decay *= decay
                else:
                    rate *= decay**steps
        rate *= late_decay
        losses.append(total / samples if samples else None)
    return Trajectory(weights, losses, skipped, scheduler_steps, scaling.scale, moved)


def _squares(case: Regression, weight: FloatArray, samples: slice) -> float:
    return float((difference(case, weight, samples) ** 2).sum())


def _accumulated(
    case: Regression, run: Run, window: Window, weight: FloatArray, left: FloatArray, mistake: str
) -> FloatArray:
    """The gradients of a window's batches, added to what is `left`; NaN from the first batch on that overflows."""
    total = left
    for batch in window.batches:
        if mistake == "cleared_each_batch":
            total = np.zeros_like(total)
        share = _share(run, window, batch, mistake)
        if batch.overflows and not _is_finite_all_the_same(mistake, batch, share * run.loss_factor):
            total = np.full_like(total, np.nan)
        else:
            if mistake == "model_cast" and run.dtype == "bfloat16":
                total = to_bfloat16(total + _cast_gradient(case, weight, batch.samples, share * run.loss_factor))
            else:
                total = total + share * (run.loss_factor * gradient_of(case, weight, batch.samples))
        if mistake == "clipped_each_batch":
            total = _clipped(total, run, 1.0)
    return total


def _is_finite_all_the_same(mistake: str, batch: Batch, factor: float) -> bool:
    """Whether the gradients of a batch that is to overflow do not; `factor` multiplies its loss."""
    fits = factor * DISTANT_TARGET / batch.size <= _LARGEST_FLOAT16
    return mistake == "forward_in_float32" or (mistake == "not_scaled" and not batch.overflows_in_forward and fits)


def _cast_gradient(case: Regression, weight: FloatArray, samples: slice, factor: float) -> FloatArray:
    """As `factor * gradient_of`, of a model and samples that were cast to bfloat16."""
    inputs = np.asarray(case.inputs[samples], dtype=np.float64)
    slope = factor * (to_bfloat16(inputs @ weight.T) - case.targets[samples]) / len(inputs)
    return to_bfloat16(to_bfloat16(slope).T @ inputs)


def _unscaled_each_batch(
    case: Regression, run: Run, window: Window, weight: FloatArray, scaling: LossScale
) -> FloatArray:
    """The gradients of a window in which unscale_() and update() follow each batch, and what is added is scaled."""
    total = np.zeros_like(weight)
    for index, batch in enumerate(window.batches):
        factor = _share(run, window, batch, "") * run.loss_factor
        gradient = factor * gradient_of(case, weight, batch.samples)
        slope = factor * difference(case, weight, batch.samples) / batch.size
        largest = scaling.scale * max(np.abs(gradient).max(), np.abs(slope).max())  # a scale that grows too early
        is_lost = batch.overflows or largest > _LARGEST_FLOAT16
        total = total / scaling.scale + (np.nan if is_lost else gradient)
        if index + 1 < len(window.batches):
            scaling.update(not np.isfinite(total).all())
    return total


def _share(run: Run, window: Window, batch: Batch, mistake: str) -> float:
    """By what a batch's mean loss is multiplied."""
    share = batch.size / window.size
    shares = {
        "summed": 1.0,
        "all_alike": 1 / len(window.batches),
        "by_full_windows": 1 / run.window,
        "divided_twice": share / run.window,
        "short_window_by_full_length": share * len(window.batches) / run.window,
    }
    return shares.get(mistake, share)


def _clipped_by(mistake: str, gradient: FloatArray, run: Run, scale: float) -> FloatArray:
    """Clipped as the run asks for, in the way of a mistake. The weight's rows are in three parameters."""
    head, *others = np.array_split(gradient, 3)
    parts = {"clipped_by_parameter": [head, *others], "clipped_by_child": [head, np.concatenate(others)]}
    scale = scale if mistake == "clipped_while_scaled" else 1.0
    return np.concatenate([_clipped(part, run, scale) for part in parts.get(mistake, [gradient])])


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


def last_scale(run: Run) -> float:
    """The loss scale of float16 in the last step, before its update."""
    return LossScale(**(run.scaler or {})).after(overflows(run)[:-1])


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


@dataclass(frozen=True)
class StepsTrajectory:
    """What a classifier's training with the document's arguments comes to."""

    weights: list[FloatArray]
    """Before each batch, and at the end."""
    losses: list[float | None]
    """Per epoch, over the samples of the steps taken; None if there were none."""
    taken: int
    skipped: int
    final_scale: float


def follow_steps(case: Steps, overflows: Sequence[bool], mistake: str = "") -> StepsTrajectory:
    """Train the classifier by Adam at the default scale; `overflows` says which batches of an epoch overflow.

    `mistake` is a key of `checks.mistakes.STEPS`, or of `LOSSES`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _follow_steps(case, overflows, mistake)


def _follow_steps(case: Steps, overflows: Sequence[bool], mistake: str) -> StepsTrajectory:
    weight, adam, scaling = np.asarray(case.weight, dtype=np.float64), Adam(), LossScale()
    gradient, taken, skipped = np.zeros_like(weight), 0, 0
    weights, losses = [weight], []
    ends = np.cumsum([0, *case.sizes])
    for _ in range(case.epochs):
        total, samples = 0.0, 0
        for index, size in enumerate(case.sizes):
            rows = slice(ends[index], ends[index + 1])
            inputs, labels = np.asarray(case.inputs[rows], dtype=np.float64), case.labels[rows]
            in_forward = index in case.overflows_in_forward
            if in_forward:
                inputs = np.full_like(inputs, OVERFLOWING_INPUT)
            loss = mean_cross_entropy(inputs @ weight.T, labels)
            left = gradient / scaling.scale if mistake == "never_cleared" else np.zeros_like(gradient)
            gradient = left + cross_entropy_gradient(weight, inputs, labels)
            if mistake == "not_scaled":
                gradient = gradient.astype(np.float16).astype(np.float64)
            if _overflows(mistake, overflows[index], in_forward=in_forward, scaled_loss=loss * scaling.scale):
                gradient = np.full_like(gradient, np.nan)
            is_lost = not np.isfinite(gradient).all()
            if not is_lost or _is_made_all_the_same(mistake, in_forward=in_forward):
                made_of = np.zeros_like(gradient) if mistake == "step_with_zeros" and is_lost else gradient
                weight = weight - adam.step(made_of)
            is_skipped = is_lost and mistake != "not_scaled"
            taken, skipped = taken + (not is_skipped), skipped + is_skipped
            if not is_skipped or (mistake == "skipped_losses_counted" and not in_forward):
                total += size * loss * (scaling.scale if mistake == "scaled_loss_reported" else 1.0)
                samples += size
            if mistake != "not_scaled":
                scaling.update(is_lost)
            weights.append(weight)
        losses.append(total / samples if samples else None)
    return StepsTrajectory(weights, losses, taken, skipped, scaling.scale)


def _overflows(mistake: str, overflows: bool, *, in_forward: bool, scaled_loss: float) -> bool:
    """Whether a batch's gradients are not finite, where `overflows` is what they are in a right training."""
    if mistake == "forward_in_float32":
        return False
    if mistake == "not_scaled":
        return in_forward
    return overflows or (mistake == "loss_in_low_precision" and scaled_loss > _LARGEST_FLOAT16)


def _is_made_all_the_same(mistake: str, *, in_forward: bool) -> bool:
    """Whether the optimizer makes its step although gradients are not finite."""
    if mistake == "loss_looked_at":
        return not in_forward
    return mistake in ("not_scaled", "step_with_zeros", "optimizer_steps_by_itself")


def after_one_step(case: Steps) -> FloatArray:
    """The classifier's weights after a step of Adam on all samples."""
    weight, inputs = (np.asarray(array, dtype=np.float64) for array in (case.weight, case.inputs))
    return weight - Adam().step(cross_entropy_gradient(weight, inputs, case.labels))
