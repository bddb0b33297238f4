"""What comes out of Lab 2's small trainings with one mistake in them, so that it can be recognised by its result.

Whoever weighs the batches of a window alike misses the weights of four checks, and is right in everything else. A
training that comes to what one of these mistakes leads to, in all runs of a check, has this mistake and no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradebox.run.assertions import Cause, recognising
from grader.lab2.truth.training import Array, Regression, Run, final_scale, relative_error

_ERROR = {"float32": 1e-3, "float16": 0.03, "bfloat16": 0.03}
"""Relative to the way of the weights; what each mistake leads to lies further away."""

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
def recognised(case: Regression, runs: Sequence[Run], found: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Where a comparison in here fails, say which mistake leads to what was seen, if one does."""
    with recognising(lambda: cause_of(case, runs, found)):
        yield


def cause_of(case: Regression, runs: Sequence[Run], found: Sequence[dict[str, Any]]) -> Cause | None:
    """The mistake that leads to all of these weights; None where there is none, or where they are right."""
    if _only_overflows_are_wrong(case, runs, found):
        return OVERFLOW
    if all(_agrees(case, run, seen, "") for run, seen in zip(runs, found, strict=True)):
        goes_on = any(_goes_on(run, seen) for run, seen in zip(runs, found, strict=True))
        return MISTAKES["schedule_ignores_skips"] if goes_on else None
    return next(
        (
            cause
            for name, cause in MISTAKES.items()
            if all(_went_through(run, seen, name) for run, seen in zip(runs, found, strict=True))
            and all(_agrees(case, run, seen, name) for run, seen in zip(runs, found, strict=True))
        ),
        None,
    )


def _went_through(run: Run, seen: dict[str, Any], mistake: str) -> bool:
    """Whether the training says that it went through all windows of all epochs: one that ends early has not gone half
    as far because it divides by two."""
    result = seen.get("result")
    if result is None or mistake == "last_window_dropped":
        return True
    counts = [result.get(name) for name in ("optimizer_steps", "skipped_steps")]
    if not all(isinstance(count, int) for count in counts):  # what is told says nothing
        return True
    return bool(sum(counts) == len(list(_batches(run))) * run.get("epochs", 1))


def _only_overflows_are_wrong(case: Regression, runs: Sequence[Run], found: Sequence[dict[str, Any]]) -> bool:
    """Whether weights are lost where batches overflow, and right in all other trainings."""
    lost = [_overflows(run) and not np.isfinite(seen["after"]).all() for run, seen in zip(runs, found, strict=True)]
    others = [(run, seen) for run, seen, gone in zip(runs, found, lost, strict=True) if not gone]
    return any(lost) and all(_agrees(case, run, seen, "") for run, seen in others)


def _goes_on(run: Run, seen: dict[str, Any]) -> bool:
    """Whether the scheduler made a step for each window, also for those that overflow; no weight need show that."""
    every = len(list(_batches(run))) * run.get("epochs", 1)
    return "decay" in run and _overflows(run) and seen.get("scheduler_steps") == every


def _overflows(run: Run) -> bool:
    return bool(run.get("spoiled") or run.get("far"))


def _agrees(case: Regression, run: Run, seen: dict[str, Any], mistake: str) -> bool:
    truth, start = follow(case, run, mistake), case.start
    if np.array_equal(truth, start):
        return bool(np.array_equal(np.ravel(seen["after"]), np.ravel(start)))
    return relative_error(seen["after"], truth, start) <= _ERROR[run["dtype"]]


def follow(case: Regression, run: Run, mistake: str = "") -> Array:
    """The weights after a training with this mistake; without one, those of `Regression.follow`."""
    weight, velocity, held = case.start, np.zeros_like(case.start), np.zeros_like(case.start)
    rate, decay, momentum = run["rate"], run.get("decay", 1.0), run.get("momentum", 0.0)
    happened: list[bool] = []
    for _ in range(run.get("epochs", 1)):
        late = 1.0
        for window in _batches(run):
            if mistake == "last_window_dropped" and len(window) < run.get("accumulation_steps", 1):
                continue
            scale = _scale(run, happened)
            # What is left is unscaled already when the next, scaled gradients are added to it.
            held = held / scale if mistake == "never_cleared" else np.zeros_like(held)
            for part, overflows in window:
                if mistake == "cleared_each_batch":
                    held = np.zeros_like(held)
                gradient = run.get("factor", 1.0) * case.gradient(weight, part)
                held = np.full_like(held, np.nan) if overflows else held + _share(run, window, part, mistake) * gradient
                if mistake == "clipped_each_batch":
                    held = _clipped(held, run, 1.0)
            happened.append(not np.isfinite(held).all())
            if mistake == "step_with_zeros" and happened[-1]:
                held = np.zeros_like(held)
            stepped = bool(np.isfinite(held).all())
            if stepped:
                if mistake != "never_clipped":
                    held = _clipped(held, run, scale if mistake == "clipped_while_scaled" else 1.0)
                velocity = momentum * velocity + held
                weight = weight - rate * velocity
            if stepped or mistake == "schedule_ignores_skips":
                late, rate = (late * decay, rate) if mistake == "schedule_at_the_end" else (late, rate * decay)
        rate *= late
    return weight


def _scale(run: Run, happened: Sequence[bool]) -> float:
    """By what the loss is multiplied after these windows, of which some overflowed."""
    defaults = {"init_scale": 2.0**16, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
    return final_scale({**defaults, **run.get("scaler", {})}, happened) if run["dtype"] == "float16" else 1.0


def _batches(run: Run) -> Iterator[list[tuple[slice, bool]]]:
    """The windows of an epoch: of each of its batches the samples, and whether it overflows."""
    sizes, length = run["sizes"], run.get("accumulation_steps", 1)
    bad = [*run.get("spoiled", []), *run.get("far", [])]
    ends = np.cumsum([0, *sizes]).tolist()
    for first in range(0, len(sizes), length):
        yield [(slice(ends[i], ends[i + 1]), i in bad) for i in range(first, min(first + length, len(sizes)))]


def _share(run: Run, window: Sequence[tuple[slice, bool]], part: slice, mistake: str) -> float:
    """By what a batch's mean loss is multiplied."""
    steps = run.get("accumulation_steps", 1)
    share: float = (part.stop - part.start) / (window[-1][0].stop - window[0][0].start)
    shares: dict[str, float] = {
        "summed": 1.0,
        "all_alike": 1 / len(window),
        "by_full_windows": 1 / steps,
        "divided_twice": share / steps,
    }
    return shares.get(mistake, share)


def _clipped(gradient: Array, run: Run, scale: float) -> Array:
    """Clipped as the run asks for, while it is multiplied by `scale`."""
    norm, limit = scale * float(np.linalg.norm(gradient)), run.get("max_grad_norm")
    return gradient if limit is None or norm <= limit or not np.isfinite(norm) else gradient * (limit / norm)
