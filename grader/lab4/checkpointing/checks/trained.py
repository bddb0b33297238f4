"""What models trained in some way must give: the outputs, gradients and random numbers of the plain chain of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    recognising,
    require,
    require_arrays_close,
    require_between,
    require_equal,
)
from gradebox.run.submission import Submission
from grader.lab4.checkpointing.cases.draws import ALL_OPTIONS
from grader.lab4.checkpointing.cases.types import Equivalence, Evaluation, Model, TrainedRun, Way
from grader.lab4.checkpointing.mistakes import NO_GRADIENT

SAME = 1e-9
"""In float64; measured: 0 with the same operations in the same order, 1e-2 with other dropout masks."""
_NUDGE = 3e-5
_SLOPE_ERROR = 0.02
"""Of the gradients' norm; measured: up to 7e-4, of outputs in float32, and 3 with other dropout masks."""
_OUTPUTS, _GRADIENTS = "lab4.checkpointing.outputs_unchanged", "lab4.checkpointing.gradients_unchanged"
_INPUT_CHANGED = Cause(
    "input_made_to_require_a_gradient",
    "Leave the caller's input as it is: use_reentrant=False needs no x.requires_grad_().",
    _OUTPUTS,
    mistake="The model changes its caller's input, which requires a gradient after the call",
)
_DROPS_IN_EVALUATION = Cause(
    "dropout_in_evaluation",
    "Run the blocks in the model's own mode: model.eval() switches dropout off in every block, and nothing may switch "
    "it on again.",
    _OUTPUTS,
    mistake="Dropout stays on in evaluation mode",
)
_OTHER_MASKS = Cause(
    "other_dropout_masks",
    "Let the second computation draw what the first one drew: preserve_rng_state=True, or a generator state kept for "
    "each forward pass.",
    _GRADIENTS,
    mistake="When backward computes a segment again, dropout draws other random numbers than the first time",
)
Trained: TypeAlias = tuple[Way, TrainedRun, TrainedRun]
"""A way, what the student's model gave, and what the plain chain of blocks gave."""


def train(submission: Submission, case: Model, ways: list[Way]) -> list[Trained]:
    """The model trained in each of these ways."""
    runs = submission.numeric_probe(Equivalence(case=case, ways=ways)).runs
    # Without a student no interval matters: ways that differ in nothing else have one reference.
    plain = list(dict.fromkeys(replace(way, interval=None) for way in ways))
    expected = submission.numeric_probe(Equivalence(case=case, ways=plain), student=False).runs
    by_way = dict(zip(plain, expected, strict=True))
    return [(way, run, by_way[replace(way, interval=None)]) for way, run in zip(ways, runs, strict=True)]


def require_outputs(trained: Sequence[Trained]) -> None:
    for way, run, expected in trained:
        require_arrays_close(
            run.output,
            expected.output,
            rtol=SAME,
            atol=SAME,
            what=f"output of CheckpointedTransformer in training with checkpoint_every={way.interval}, and the same "
            "seed",
            hint="Run the blocks one after the other, each once and in order.",
        )
        require(
            not run.input_changed,
            f"with checkpoint_every={way.interval} the input, which required no gradient, requires one after the call",
            _INPUT_CHANGED,
        )


def require_gradients(submission: Submission, case: Model, trained: Sequence[Trained]) -> None:
    for way, run, expected in trained:
        what = f"checkpoint_every={way.interval}"
        if way.passes > 1:
            what += ", two forward passes before one backward"
        none_at_all = run.missing == len(run.names) and not way.input_gradient
        require_equal(
            run.missing,
            0,
            what=f"parameters without a gradient after backward, {what}, of an input that requires "
            f"{'a' if way.input_gradient else 'no'} gradient",
            hint=NO_GRADIENT if none_at_all else "Let the gradient pass through every segment to all parameters.",
        )
        with recognising(lambda: _masks_of(submission, case, way)):  # noqa: B023 - called in here
            require_arrays_close(
                run.gradients,
                expected.gradients,
                rtol=SAME,
                atol=SAME,
                what=f"gradients of the parameters with dropout, {what}",
            )
        with recognising(lambda: _masks_of(submission, case, way)):  # noqa: B023 - called in here
            require_arrays_close(
                run.input_gradient,
                expected.input_gradient,
                rtol=SAME,
                atol=SAME,
                what=f"gradient of the input, {what}",
            )
        for where, half in (("the device", slice(3)), ("the CPU", slice(3, 6))):
            require_arrays_close(
                run.after[half],
                expected.after[half],
                rtol=SAME,
                what=f"random numbers that {where} draws after backward, {what}",
                hint="Put the generators back after the second computation, so that they go on as if there had been "
                "none.",
            )


def require_own_gradients(submission: Submission, case: Model, ways: list[Way]) -> None:
    """Fail unless the gradients are the slopes of the submission's own outputs, right or wrong."""
    lower, runs, upper = (
        submission.numeric_probe(Equivalence(case=replace(case, nudge=nudge), ways=ways)).runs
        for nudge in (-_NUDGE, 0.0, _NUDGE)
    )
    for way, low, run, high in zip(ways, lower, runs, upper, strict=True):
        gradients = np.append(run.gradients, run.input_gradient if way.input_gradient else [])
        rise = np.ravel(high.output) - np.ravel(low.output)
        slope = float(rise @ np.linspace(-1, 1, rise.size)) / (2 * _NUDGE)
        slack = _SLOPE_ERROR * float(np.linalg.norm(gradients))
        require_between(
            float(gradients.sum()),
            slope - slack,
            slope + slack,
            what=f"sum of all gradients with dropout, checkpoint_every={way.interval}, compared with how the model's "
            "own output changes",
            show="{:.6g}".format,
            hint=str(_OTHER_MASKS),
        )


def _masks_of(submission: Submission, case: Model, way: Way) -> Cause | None:
    """Whether gradients are wrong with dropout alone: without it, those of the same model and way are right."""
    still = replace(case, dropout=0.0, options=ALL_OPTIONS)
    ((_, run, expected),) = train(submission, still, [way])
    right = (run.gradients, run.input_gradient), (expected.gradients, expected.input_gradient)
    return _OTHER_MASKS if holds(lambda: _require_all_close(*right)) else None


def require_evaluated(submission: Submission, case: Model, intervals: list[int | None]) -> None:
    """Fail unless nothing is dropped in evaluation mode."""
    runs = submission.numeric_probe(Evaluation(case=case, intervals=intervals)).runs
    (plain,) = submission.probe(Evaluation(case=case, intervals=[None]), device="cpu", student=False).runs
    for interval, run in zip(intervals, runs, strict=True):
        for output, how in ((run.output, "with"), (run.again, "without")):
            with recognising(lambda: _dropout_of(submission, case, interval)):  # noqa: B023 - called in here
                require_arrays_close(
                    output,
                    plain.output,
                    rtol=SAME,
                    atol=SAME,
                    what=f"output in evaluation mode {how} gradients, checkpoint_every={interval}",
                    hint="Run every block once and in order, in evaluation mode as well.",
                )


def _dropout_of(submission: Submission, case: Model, interval: int | None) -> Cause | None:
    """Whether an output in evaluation mode is wrong with dropout alone: without it, that of the same model is right."""
    still = replace(case, dropout=0.0, options=ALL_OPTIONS)
    (run,) = submission.numeric_probe(Evaluation(case=still, intervals=[interval])).runs
    (plain,) = submission.probe(Evaluation(case=still, intervals=[None]), device="cpu", student=False).runs
    right = (run.output, run.again), (plain.output, plain.output)
    return _DROPS_IN_EVALUATION if holds(lambda: _require_all_close(*right)) else None


def _require_all_close(observed: Sequence[object], expected: Sequence[ArrayLike]) -> None:
    for actual, right in zip(observed, expected, strict=True):
        require_arrays_close(actual, right, rtol=SAME, atol=SAME, what="without dropout")


def holds(requirement: Callable[[], None]) -> bool:
    try:
        requirement()
    except CheckFailed:
        return False
    return True


def fitting(
    submission: Submission, case: Model, ways: Sequence[Way], requirement: Callable[[Sequence[Trained]], None]
) -> list[Way]:
    """Of some ways those in which a requirement holds if every block is checkpointed by itself, as by default."""
    by_block = train(submission, case, [replace(way, interval=1) for way in ways])
    return [way for way, row in zip(ways, by_block, strict=True) if holds(lambda: requirement([row]))]  # noqa: B023
