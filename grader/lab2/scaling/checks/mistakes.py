"""Recognises the mistake in one of Lab 2's small trainings by the weights that it led to.

If a submission weighs the batches of a window alike, it misses the weights of four checks, and is right in everything
else. A training that comes to what one of these mistakes leads to, in all runs of a check, has this mistake and no
other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gradebox.run.assertions import Cause, recognising
from grader.lab2.scaling.cases.steps import Steps, StepsReply
from grader.lab2.scaling.cases.trainings import Regression, Run, RunReport
from grader.lab2.scaling.reference import (
    StepsTrajectory,
    difference,
    final_scale,
    first_scale,
    follow,
    follow_steps,
    start,
    windows,
)
from grader.lab2.shared.cases import AmpResult
from grader.lab2.shared.causes import NEVER_CLEARED
from grader.lab2.shared.endings import MODEL_CAST
from grader.lab2.shared.reference import FloatArray, relative_error
from grader.shared.results import is_result

_ERROR = {"float32": 1e-3, "float16": 0.03, "bfloat16": 0.03}
"""Relative to the way of the weights; what each mistake leads to is further away."""

_ADAM_ERROR = 0.1
"""The same of a classifier's steps by Adam, which makes full steps of small gradients."""
_LOSS_ERROR = 0.03

_ACCUMULATION = "lab2.scaling.accumulation_equals_one_large_batch"
_CLIPPING = "lab2.scaling.clipping_sees_unscaled_gradients"
_SCHEDULE = "lab2.scaling.scheduler_waits_for_the_optimizer"
_SKIPPING = "lab2.scaling.overflow_skips_the_step"
_SCALED = "lab2.scaling.only_float16_is_scaled"

OVERFLOW = Cause(
    "overflow_reaches_the_weights",
    "Let the scaler make the step: `scaler.step(optimizer)` looks for gradients that are not finite and skips the step "
    "if there are any.",
    _SKIPPING,
    mistake="The optimizer makes its step although gradients are not finite",
)

MISTAKES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        NEVER_CLEARED,
        Cause(
            "cleared_each_batch",
            "Clear the gradients once per window, not before each batch. Now a step sees the last batch of its window "
            "only.",
            _ACCUMULATION,
            mistake="Gradients are cleared before every batch, so that a window consists of its last batch",
        ),
        Cause(
            "summed",
            "Weigh each batch by its share of the window's samples before backward.",
            _ACCUMULATION,
            mistake="The losses of a window are added up instead of averaged",
        ),
        Cause(
            "all_alike",
            "Weigh each batch by its share of the window's samples.",
            _ACCUMULATION,
            mistake="Each batch of a window weighs the same, however many samples it has",
        ),
        Cause(
            "divided_twice",
            "Weigh each batch once, by its share of the window's samples, and do not divide by `accumulation_steps` "
            "as well.",
            _ACCUMULATION,
            mistake="The loss is divided twice: by accumulation_steps, although it is weighed already",
        ),
        Cause(
            "short_window_by_full_length",
            "Divide by what the window really has. The last window of an epoch may be shorter.",
            _ACCUMULATION,
            mistake="The last, shorter window of an epoch is divided by the length of a full one",
        ),
        Cause(
            "last_window_dropped",
            "Make a step for the last, shorter window of an epoch, too.",
            _ACCUMULATION,
            mistake="The last, shorter window of an epoch is left out",
        ),
        Cause(
            "clipped_while_scaled",
            "Call `scaler.unscale_(optimizer)` before you clip.",
            _CLIPPING,
            mistake="Gradients are clipped while the loss scale is still in them, before unscale_()",
        ),
        Cause(
            "clipped_each_batch",
            "Clip once per window, the gradients that have added up.",
            _CLIPPING,
            mistake="Gradients are clipped after each batch of a window",
        ),
        Cause(
            "clipped_by_parameter",
            "Clip one norm over all parameters: `clip_grad_norm_(model.parameters(), max_grad_norm)`.",
            _CLIPPING,
            mistake="Each parameter's gradient is clipped by itself, instead of the norm over all parameters",
        ),
        Cause(
            "clipped_by_child",
            "Clip one norm over all parameters: `clip_grad_norm_(model.parameters(), max_grad_norm)`.",
            _CLIPPING,
            mistake="The gradients of each child of the model are clipped by themselves, instead of the norm over all "
            "parameters",
        ),
        Cause(
            "short_window_not_clipped",
            "Clip in each window, whatever its length.",
            _ACCUMULATION,
            mistake="Gradients are clipped in full windows only, and not in the last, shorter one",
        ),
        Cause(
            "unscaled_each_batch",
            "Call `unscale_()`, `step()` and `update()` once per window, after its last backward pass.",
            _ACCUMULATION,
            mistake="Gradients are unscaled and the scale is updated after each batch of a window, so that later "
            "gradients are added to unscaled ones",
        ),
        MODEL_CAST,
        Cause(
            "never_clipped",
            "Clip the gradients to `max_grad_norm`, in every precision.",
            _CLIPPING,
            mistake="Gradients are never clipped",
        ),
        Cause(
            "step_with_zeros",
            "Skip the optimizer's step after an overflow. If gradients are only set to 0, momentum still moves the "
            "weights.",
            _SKIPPING,
            mistake="After an overflow the optimizer still makes its step, with gradients that are set to zero",
        ),
        Cause(
            "not_scaled",
            "Send the loss through the scaler, `scaler.scale(loss).backward()`, and the step, "
            "`scaler.step(optimizer)`.",
            _SCALED,
            mistake="The loss does not go through the scaler in float16",
        ),
        Cause(
            "forward_in_float32",
            "Run the model inside of `with torch.autocast(device_type, dtype=...)`, and the loss with it.",
            "lab2.amp.products_in_low_precision",
            mistake="The model runs outside of autocast, in float32",
        ),
        Cause(
            "schedule_ignores_skips",
            "Let the scheduler go on only after a step that was taken: compare the scale before and after `update()`.",
            _SCHEDULE,
            mistake="The scheduler goes on after a step that the optimizer skipped",
        ),
        Cause(
            "schedule_at_the_end",
            "Let the scheduler go on right after each step of the optimizer.",
            _SCHEDULE,
            mistake="The scheduler makes all steps of an epoch at its end",
        ),
        Cause(
            "schedule_per_batch",
            "Let the scheduler go on once per optimizer step. A window of several batches is one step.",
            _SCHEDULE,
            mistake="The scheduler steps for each batch of a window, not once per optimizer step",
        ),
    )
}
MISTAKES["by_full_windows"] = Cause(
    "all_alike",  # In a full window they are the same, and which one is meant cannot be seen: charged as one.
    "Weigh each batch by its share of the window's samples. `1 / accumulation_steps` is neither that share, nor right "
    "for a shorter last window.",
    _ACCUMULATION,
    mistake="Each loss is divided by accumulation_steps, however many samples its batch has",
)


LOSS_IN_LOW_PRECISION = Cause(
    "loss_in_low_precision",
    "Compute the loss inside of autocast, where cross entropy runs in float32 by itself. Outside, it runs in the dtype "
    "of the outputs.",
    "lab2.amp.loss_in_float32",
    mistake="The loss is computed outside of autocast, in 16 bits",
)
_LOSS_LOOKED_AT = Cause(
    OVERFLOW.name,
    "Look at the gradients: they may overflow although the loss is finite. `scaler.step(optimizer)` does it.",
    _SKIPPING,
    mistake="Whether a step is skipped depends on the loss being finite, not on the gradients",
)
STEPS: dict[str, Cause] = {
    **{name: MISTAKES[name] for name in ("never_cleared", "step_with_zeros", "not_scaled", "forward_in_float32")},
    "loss_in_low_precision": LOSS_IN_LOW_PRECISION,
    "optimizer_steps_by_itself": OVERFLOW,
    "loss_looked_at": _LOSS_LOOKED_AT,  # where it can be told from the former
}
"""Mistakes that show in a training with the document's arguments."""

_LOSS_NOT_SCALED = Cause(
    "loss_not_scaled",
    "Call `scaler.scale(loss).backward()`. The scaler divides the gradients by its scale in any case.",
    _SCALED,
    mistake="The loss is not multiplied by the scale, but the gradients are divided by it",
)
OTHERS_SCALED = {
    dtype: Cause(
        "others_scaled",
        "Switch the scaler off unless dtype is float16, and report no final scale.",
        _SCALED,
        mistake=f"The loss is scaled in {dtype} as well",
    )
    for dtype in ("bfloat16", "float32")
}

LOSSES: dict[str, Cause] = {
    "scaled_loss_reported": Cause(
        "scaled_loss_reported",
        "Report the loss as the criterion gives it, before the scaler multiplies it.",
        "lab2.amp.loss_time_and_memory_reported",
        mistake="The losses are reported with their scale",
    ),
    "skipped_losses_counted": Cause(
        "skipped_losses_counted",
        "Count the losses of steps that were taken, over the samples of these steps.",
        _SKIPPING,
        mistake="The losses of skipped steps are counted",
    ),
}
"""Mistakes in what is reported of a training that is right."""


@contextmanager
def recognised(case: Regression, runs: Sequence[Run], reports: Sequence[RunReport]) -> Iterator[None]:
    """If a comparison in here fails, say which mistake leads to what was observed, if one does."""
    with recognising(lambda: cause_of(case, runs, reports)):
        yield


@contextmanager
def recognised_steps(case: Steps, overflows: Sequence[bool], reply: StepsReply) -> Iterator[None]:
    """The same for a training with the document's arguments; `overflows` says which batches of an epoch do."""
    with recognising(lambda: cause_of_steps(case, overflows, reply)):
        yield


def cause_of_steps(case: Steps, overflows: Sequence[bool], reply: StepsReply) -> Cause | None:
    """The mistake that leads to the weights after each batch; None if there is none, or if they are right."""
    if _steps_agree(follow_steps(case, overflows), reply):
        return next(
            (
                cause
                for name, cause in LOSSES.items()
                if losses_agree(reply.result, follow_steps(case, overflows, name).losses)
            ),
            None,
        )
    return next(
        (cause for name, cause in STEPS.items() if _steps_agree(follow_steps(case, overflows, name), reply, name)), None
    )


def _steps_agree(expected: StepsTrajectory, reply: StepsReply, mistake: str = "") -> bool:
    """Whether all steps moved the weights as expected, and as many are reported as taken and skipped."""
    states = [np.asarray(state, dtype=np.float64) for state in (*reply.before, reply.after)]
    if len(states) != len(expected.weights):
        return False
    moved = [not np.array_equal(a, b) for a, b in itertools.pairwise(states)]
    expected_moved = [not np.array_equal(a, b) for a, b in itertools.pairwise(expected.weights)]
    if moved != expected_moved:
        return False
    start = expected.weights[0]
    for state, weight in zip(states, expected.weights, strict=True):
        if state.size != weight.size:
            return False
        if not np.isfinite(weight).all():
            if np.isfinite(state).all():
                return False
        elif not np.array_equal(weight, start) and not relative_error(state, weight, start) <= _ADAM_ERROR:
            return False
    if mistake in ("loss_looked_at", "optimizer_steps_by_itself") or not is_result(reply.result):
        return True  # what is skipped then depends on how it is counted
    return [reply.result.get(name) for name in ("optimizer_steps", "skipped_steps")] == [
        expected.taken,
        expected.skipped,
    ]


def losses_agree(result: AmpResult, expected: Sequence[float | None]) -> bool:
    """Whether the losses of a result are these."""
    losses = result.get("losses")
    if not isinstance(losses, list) or len(losses) != len(expected):
        return False
    return all(
        loss is None if value is None else isinstance(loss, float) and abs(loss - value) <= _LOSS_ERROR * abs(value)
        for loss, value in zip(losses, expected, strict=True)
    )


def cause_of(case: Regression, runs: Sequence[Run], reports: Sequence[RunReport]) -> Cause | None:
    """The mistake that leads to all of these weights and counts; None if there is none, or if they are right."""
    pairs = list(zip(runs, reports, strict=True))
    if all(_agrees(case, run, report, "") for run, report in pairs):
        return _cause_in_counts(case, pairs)
    for name, cause in MISTAKES.items():
        if all(
            _went_through(run, report, name) and _agrees(case, run, report, name) and _counts(case, run, report, name)
            for run, report in pairs
        ):
            return cause
    return OVERFLOW if _only_overflows_are_wrong(case, runs, reports) else None


def _cause_in_counts(case: Regression, pairs: Sequence[tuple[Run, RunReport]]) -> Cause | None:
    """The mistake in trainings whose weights are right: in the scheduler's steps, or in the losses."""

    def is_seen(name: str, agree: Callable[[Run, RunReport, str], bool]) -> bool:
        return all(agree(*pair, name) for pair in pairs) and not all(agree(*pair, "") for pair in pairs)

    def scheduled(run: Run, report: RunReport, name: str) -> bool:
        return run.decay is None or report.scheduler_steps == follow(case, run, name).scheduler_steps

    def reported(run: Run, report: RunReport, name: str) -> bool:
        return losses_agree(report.result, follow(case, run, name).losses)

    def scaled_as(run: Run, report: RunReport, name: str) -> bool:
        return run.dtype != "float16" or report.result.get("final_scale") == follow(case, run, name).final_scale

    scheduling = ("schedule_ignores_skips", "schedule_per_batch")
    seen = [MISTAKES[name] for name in scheduling if is_seen(name, scheduled)]
    seen += [MISTAKES[name] for name in ("unscaled_each_batch",) if is_seen(name, scaled_as)]
    seen += [cause for name, cause in LOSSES.items() if is_seen(name, reported)]
    scaled = {run.dtype for run, report in pairs if _is_scaled(run, report)} - {"float16"}
    if all(run.dtype not in scaled or _is_scaled(run, report) for run, report in pairs):
        seen += [cause for dtype, cause in OTHERS_SCALED.items() if dtype in scaled]
    return seen[0] if seen else None


def _is_scaled(run: Run, report: RunReport) -> bool:
    """Whether a scaler was at work, by the scale that is reported."""
    return report.result.get("final_scale") == final_scale(run)


def scaling_cause_of(case: Regression, runs: Sequence[Run], reports: Sequence[RunReport]) -> Cause | None:
    """Of one step in each precision, in which precision the loss is scaled, if not in float16 only."""

    def largest(run: Run, weight: FloatArray) -> float:
        """Of the outputs' gradients."""
        samples = run.sizes[0]
        return float(np.abs(difference(case, weight, slice(0, samples))).max()) / samples

    scaled = {}
    for run, report in zip(runs, reports, strict=True):
        factor = max(report.largest_gradients, default=0.0) / largest(run, start(case))
        is_scaled = [abs(factor / by - 1) <= _ERROR["float16"] for by in (1.0, first_scale(run))]
        if not any(is_scaled):
            return None
        scaled[run.dtype] = is_scaled[1]
    if not scaled["float16"]:
        if any(scaled.values()):
            return None
        runs_in_float16 = [pair for pair in zip(runs, reports, strict=True) if pair[0].dtype == "float16"]
        is_right = all(_agrees(case, run, report, "") for run, report in runs_in_float16)
        return MISTAKES["not_scaled"] if is_right else _LOSS_NOT_SCALED
    return next((cause for dtype, cause in OTHERS_SCALED.items() if scaled[dtype]), None)


def _went_through(run: Run, report: RunReport, mistake: str) -> bool:
    """Whether the training says that it went through all windows of all epochs: one that ends early has not gone half
    as far because it divides by two."""
    if mistake == "last_window_dropped":
        return True
    taken, skipped = (report.result.get(name) for name in ("optimizer_steps", "skipped_steps"))
    if not isinstance(taken, int) or not isinstance(skipped, int):  # what it reports says nothing
        return True
    return taken + skipped == len(windows(run)) * run.epochs


def _counts(case: Regression, run: Run, report: RunReport, mistake: str) -> bool:
    """Whether a training skipped as many steps as this mistake leads to, if it is one of those that change that."""
    if mistake not in ("not_scaled", "forward_in_float32"):
        return True
    return report.result.get("skipped_steps") == follow(case, run, mistake).skipped


def _only_overflows_are_wrong(case: Regression, runs: Sequence[Run], reports: Sequence[RunReport]) -> bool:
    """Whether weights are lost where batches overflow, and right in all other trainings."""
    pairs = list(zip(runs, reports, strict=True))
    lost = [bool(run.overflowing) and not np.isfinite(report.after).all() for run, report in pairs]
    others = [pair for pair, is_lost in zip(pairs, lost, strict=True) if not is_lost]
    return any(lost) and all(_agrees(case, run, report, "") for run, report in others)


def _agrees(case: Regression, run: Run, report: RunReport, mistake: str) -> bool:
    trajectory, before = follow(case, run, mistake), start(case)
    expected = trajectory.end
    if not np.isfinite(expected).all():
        return not np.isfinite(report.after).all()
    states = [*report.before, report.after]
    moved = [not np.array_equal(earlier, later) for earlier, later in itertools.pairwise(states)]
    if report.before and moved != trajectory.moved:
        return False
    if np.array_equal(expected, before):
        return bool(np.array_equal(np.ravel(report.after), np.ravel(before)))
    return relative_error(report.after, expected, before) <= _ERROR[run.dtype]
