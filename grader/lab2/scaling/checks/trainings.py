"""What each check of gradient scaling requires of a training: that it came to what its arguments say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradebox.run.assertions import Cause, number, require, require_between, require_close, require_equal
from gradebox.run.submission import Submission
from grader.lab2.scaling import reference
from grader.lab2.scaling.cases.trainings import NEVER_CLIPS, Regression, Run, RunReport, Train
from grader.lab2.shared.checks import listed
from grader.lab2.shared.endings import trained_by
from grader.lab2.shared.reference import relative_error
from grader.shared.results import require_result

_ERROR = {"float64": 1e-4, "float32": 1e-3, "float16": 0.03, "bfloat16": 0.03}
"""Relative to the way of the weights. Sixteen bits round each product by 0.05 % and 0.4 %, float32 makes 1e-6 of it;
PyTorch's clipping adds 1e-6 to the norm, which may be as small as 0.03."""
SCALE_OF_THE_LAST_STEP = Cause(
    "final_scale_before_the_update",
    "Read `scaler.get_scale()` after the last `update()`.",
    "lab2.scaling.scale_follows_its_settings",
    mistake="final_scale is the scale that the last step had, not the one after its update",
)
_UNCLIPPED = 1e-9
"""In float64, where nothing is clipped."""


def train(submission: Submission, case: Regression, runs: Sequence[Run]) -> list[RunReport]:
    """What was observed of each run."""
    inputs = Train(weight=case.weight, inputs=case.inputs, targets=case.targets, runs=list(runs))
    reports = trained_by(submission, inputs).runs
    for report in reports:
        require(
            bool(report.before),
            "train_with_amp() returned without a forward pass of the model",
            "Go through the batches of train_loader, as often as epochs says.",
        )
    return reports


def require_followed(case: Regression, run: Run, report: RunReport) -> None:
    """Fail unless a training came to what its arguments say: weights, losses, steps, scale and schedule."""
    what = f"train_with_amp() {_in_words(run)}"
    result, dtype = require_result(report.result), "float64" if run.in_float64 else run.dtype
    overflows = reference.overflows(run)
    skipped = sum(overflows)
    expected = reference.follow(case, run)
    require(
        all(np.isfinite(state).all() for state in [*report.before, report.after]),
        f"{what} left NaN or infinity in the weights",
        "Look for gradients that are not finite before the optimizer's step, and skip it.",
    )
    require_equal(
        [result["optimizer_steps"], result["skipped_steps"]],
        [len(overflows) - skipped, skipped],
        what=f"{what}: optimizer_steps and skipped_steps",
        hint="Make one step per window, in the last, shorter window of an epoch, too.",
    )
    require_equal(result["dtype"], run.dtype, what=f"{what}: AmpTraining.dtype")
    require_equal(report.frozen, [0.5, 0.5], what=f"{what}: a parameter that requires no gradient, afterwards")
    if run.decay is not None:
        require_equal(
            report.scheduler_steps,
            len(overflows) - skipped,
            what=f"{what}: steps of the scheduler",
            hint="Let the scheduler go on once after each step that was taken.",
        )
    losses = listed(result["losses"], f"{what}: AmpTraining.losses")
    require_equal(
        [loss is None for loss in losses],
        [loss is None for loss in expected.losses],
        what=f"{what}: whether AmpTraining.losses of each epoch is None",
        hint="Report None for an epoch in which no step was taken.",
    )
    for loss, expected_loss in zip(losses, expected.losses, strict=True):
        if expected_loss is not None:
            require_close(
                number(loss, f"{what}: AmpTraining.losses"),
                expected_loss,
                relative=_ERROR[dtype],
                what=f"{what}: AmpTraining.losses of an epoch",
                hint="Report the unscaled mean over the samples of the steps that were taken.",
            )
    require_equal(
        result["final_scale"],
        reference.final_scale(run) if run.dtype == "float16" else None,
        what=f"{what}: AmpTraining.final_scale",
        hint=SCALE_OF_THE_LAST_STEP
        if run.dtype == "float16" and result["final_scale"] == reference.last_scale(run)
        else "Call `update()` once per window, in float16 only.",
    )
    hint = (
        "Make each step from the mean over all samples of its window, clipped if the caller asks for it, at the "
        "learning rate of that moment."
    )
    if skipped == len(overflows):
        require(
            bool(np.array_equal(report.after, reference.start(case).ravel())),
            f"{what} changed the weights, though each step was to be skipped",
            hint,
        )
        return
    is_exact = dtype == "float64" and run.max_grad_norm in (None, NEVER_CLIPS)
    require_between(
        relative_error(report.after, expected.end, reference.start(case)),
        0,
        _UNCLIPPED if is_exact else _ERROR[dtype],
        what=f"{what}: relative error of the weights",
        hint=hint,
    )


def _in_words(run: Run) -> str:
    """A training in words: `in float16 for 2 epochs of batches of [3, 5], with accumulation_steps=2, ...`."""
    parts = [f"accumulation_steps={run.accumulation_steps}"]
    if run.max_grad_norm is not None:
        parts.append(f"max_grad_norm={run.max_grad_norm:.3g}")
    if run.decay is not None:
        parts.append("a scheduler")
    if run.momentum:
        parts.append(f"a momentum of {run.momentum}")
    if run.scaler is not None:
        parts.append(f"GradScaler({', '.join(f'{name}={value:g}' for name, value in dict(run.scaler).items())})")
    for positions, where in ((run.overflows_in_forward, "forward"), (run.overflows_in_backward, "backward")):
        if positions:
            parts.append(f"an overflow in {where} in batch {positions[0] + 1}")
    if run.device_given:
        parts.append("the device given")
    dtype = "float64" if run.in_float64 else run.dtype
    epochs = f"{run.epochs} epoch{'s' * (run.epochs > 1)}"
    return f"in {dtype} for {epochs} of batches of {run.sizes}, with {', '.join(parts)}"
