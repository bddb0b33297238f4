"""Recognises the mistake in one of Lab 2's small trainings by the weights that it led to.

If a submission weighs the batches of a window alike, it misses the weights of four checks, and is right in everything
else. A training that comes to what one of these mistakes leads to, in all runs of a check, has this mistake and no
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gradebox.run.assertions import Cause, recognising
from grader.lab2.scaling.cases.trainings import Regression, Run, RunReport
from grader.lab2.scaling.reference import follow, start, windows
from grader.lab2.shared.reference import relative_error

_ERROR = {"float32": 1e-3, "float16": 0.03, "bfloat16": 0.03}
"""Relative to the way of the weights; what each mistake leads to is further away."""

_ACCUMULATION = "lab2.scaling.accumulation_equals_one_large_batch"
_CLIPPING = "lab2.scaling.clipping_sees_unscaled_gradients"
_SCHEDULE = "lab2.scaling.scheduler_waits_for_the_optimizer"

OVERFLOW = Cause(
    "overflow_reaches_the_weights",
    "a step with gradients that are not finite was made: look for them before the optimizer's step, and skip it",
    "lab2.scaling.overflow_skips_the_step",
)

MISTAKES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        Cause(
            "never_cleared",
            "the weights are those of a training that never clears its gradients: once per window, zero_grad()",
            _ACCUMULATION,
        ),
        Cause(
            "cleared_each_batch",
            "the weights are those of a training in which a window consists of its last batch: clear the gradients "
            "once per window, not before each batch",
            _ACCUMULATION,
        ),
        Cause(
            "summed",
            "the weights are those of a training that adds up the losses of a window: weigh each batch by its share",
            _ACCUMULATION,
        ),
        Cause(
            "all_alike",
            "the weights are those of a training in which each batch of a window weighs the same: weigh it by its "
            "share of the window's samples",
            _ACCUMULATION,
        ),
        Cause(
            "divided_twice",
            "the weights are those of a training that divides by accumulation_steps what is weighed already",
            _ACCUMULATION,
        ),
        Cause(
            "last_window_dropped",
            "the weights are those of a training that leaves out the last, shorter window of an epoch",
            _ACCUMULATION,
        ),
        Cause(
            "clipped_while_scaled",
            "the weights are those of a training that clips gradients with the loss scale in them: unscale_ first",
            _CLIPPING,
        ),
        Cause(
            "clipped_each_batch",
            "the weights are those of a training that clips after each batch: once per window, what has added up",
            _CLIPPING,
        ),
        Cause(
            "step_with_zeros",
            "the weights are those of a training that makes a step with gradients of 0 after an overflow, in which "
            "momentum still moves them: skip the step",
            "lab2.scaling.overflow_skips_the_step",
        ),
        Cause("never_clipped", "the weights are those of a training that clips nothing", _CLIPPING),
        Cause(
            "schedule_ignores_skips",
            "the weights are those of a training whose scheduler goes on after steps that were skipped: compare the "
            "scale before and after update()",
            _SCHEDULE,
        ),
        Cause(
            "schedule_at_the_end",
            "the weights are those of a training whose scheduler makes all steps of an epoch at its end: it goes on "
            "right after the optimizer's step",
            _SCHEDULE,
        ),
    )
}
MISTAKES["by_full_windows"] = Cause(
    "all_alike",  # In a full window they are the same, and which one is meant cannot be seen: charged as one.
    "the weights are those of a training that divides each loss by accumulation_steps: that is neither a batch's "
    "share of the samples, nor the length of the last window",
    _ACCUMULATION,
)


@contextmanager
def recognised(case: Regression, runs: Sequence[Run], reports: Sequence[RunReport]) -> Iterator[None]:
    """If a comparison in here fails, say which mistake leads to what was observed, if one does."""
    with recognising(lambda: cause_of(case, runs, reports)):
        yield


def cause_of(case: Regression, runs: Sequence[Run], reports: Sequence[RunReport]) -> Cause | None:
    """The mistake that leads to all of these weights; None if there is none, or if they are right."""
    pairs = list(zip(runs, reports, strict=True))
    if _only_overflows_are_wrong(case, runs, reports):
        return OVERFLOW
    if all(_agrees(case, run, report, "") for run, report in pairs):
        return MISTAKES["schedule_ignores_skips"] if any(_goes_on(run, report) for run, report in pairs) else None
    return next(
        (
            cause
            for name, cause in MISTAKES.items()
            if all(_went_through(run, report, name) for run, report in pairs)
            and all(_agrees(case, run, report, name) for run, report in pairs)
        ),
        None,
    )


def _went_through(run: Run, report: RunReport, mistake: str) -> bool:
    """Whether the training says that it went through all windows of all epochs: one that ends early has not gone half
    as far because it divides by two."""
    if mistake == "last_window_dropped":
        return True
    taken, skipped = (report.result.get(name) for name in ("optimizer_steps", "skipped_steps"))
    if not isinstance(taken, int) or not isinstance(skipped, int):  # what it reports says nothing
        return True
    return taken + skipped == len(windows(run)) * run.epochs


def _only_overflows_are_wrong(case: Regression, runs: Sequence[Run], reports: Sequence[RunReport]) -> bool:
    """Whether weights are lost where batches overflow, and right in all other trainings."""
    pairs = list(zip(runs, reports, strict=True))
    lost = [bool(run.overflowing) and not np.isfinite(report.after).all() for run, report in pairs]
    others = [pair for pair, is_lost in zip(pairs, lost, strict=True) if not is_lost]
    return any(lost) and all(_agrees(case, run, report, "") for run, report in others)


def _goes_on(run: Run, report: RunReport) -> bool:
    """Whether the scheduler made a step for each window, also for those that overflow; no weight need show that."""
    every = len(windows(run)) * run.epochs
    return run.decay is not None and bool(run.overflowing) and report.scheduler_steps == every


def _agrees(case: Regression, run: Run, report: RunReport, mistake: str) -> bool:
    expected, before = follow(case, run, mistake).end, start(case)
    if np.array_equal(expected, before):
        return bool(np.array_equal(np.ravel(report.after), np.ravel(before)))
    return relative_error(report.after, expected, before) <= _ERROR[run.dtype]
