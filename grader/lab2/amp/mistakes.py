"""Recognises the mistake in a training in mixed precision: by what ran in which dtype, and by what was reported.

Each mistake leads to other dtypes, steps or figures; a run that shows just these, and is right in all else, has this
mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradebox.run.assertions import Cause
from grader.lab2.amp import reference
from grader.lab2.amp.cases import Classification, DefaultsRun, Evaluation, Precision, PrecisionReply, PrecisionRun
from grader.lab2.scaling.checks.mistakes import LOSS_IN_LOW_PRECISION, LOSSES, MISTAKES, OTHERS_SCALED
from grader.lab2.shared.cases import AmpResult
from grader.lab2.shared.causes import DEFAULT_DTYPE, EVALUATED_IN_TRAINING_MODE, EVALUATION_MODE
from grader.lab2.shared.endings import MODEL_CAST
from grader.lab2.shared.reference import LossScale, relative_error

LOW_PRECISIONS = ("float16", "bfloat16")
ADAM_ERROR = 1e-3
"""Float32 makes 1e-5 of it; weight decay of AdamW's default already moves weights by 3e-3 of the way."""
LOSS_ERROR = 0.02
"""The steps of an epoch move the loss by 1 %; a sum over batches, or a scaled loss, is far off."""

_REPORTED = "lab2.amp.loss_time_and_memory_reported"

INCOMPLETE = Cause(
    "another_number_of_steps",
    "Go through all batches `epochs` times: a step for each batch, one loss per epoch.",
    "lab2.amp.returns_result",
    mistake="The training makes another number of steps than there are batches in all epochs",
)
"""What is trained can be judged all the same."""
BACKWARD_INSIDE = Cause(
    "backward_inside_autocast",
    "Leave the with-block before `backward()`. Its operations run in the types that forward chose.",
    "lab2.amp.backward_outside_autocast",
    mistake="The backward pass runs inside of autocast: the with-block goes on too long",
)
EARLIER_PEAK = Cause(
    "peak_of_earlier_work",
    "Call `torch.cuda.reset_peak_memory_stats()` before the training begins.",
    _REPORTED,
    mistake="The peak of memory is not reset before the training: it is that of earlier work",
)
LEFT_AT_THE_END = Cause(
    "memory_left_at_the_end",
    "Report the most that was allocated at any moment of the training (`max_memory_allocated`), not what is left.",
    _REPORTED,
    mistake="The peak of memory is what is allocated at the end of the training",
)
ADAMW = Cause(
    "adamw",
    "Without an optimizer, take `torch.optim.Adam(model.parameters())` with its defaults.",
    "lab2.amp.defaults_and_refusals",
    mistake="Without an optimizer it is AdamW that trains, and not Adam",
)


def cause_of_dtypes(run: PrecisionRun, dtype: str, device: str) -> Cause | None:
    """The mistake that leads to the dtypes in which a training in `dtype` ran."""
    low = dtype in LOW_PRECISIONS
    during = sorted({name for note in run.forwards for name in note.dtypes})
    inside = {note.autocast for note in run.backwards}
    seen = (run.products, run.losses, during, inside)
    right: tuple[Any, ...] = ([dtype], run.losses and ["float32"], ["float32"], {False})
    mistakes: list[tuple[Cause, dict[int, Any]]] = [(BACKWARD_INSIDE, {3: {True}})]
    if low:
        mistakes += [
            (MISTAKES["forward_in_float32"], {0: ["float32"]}),
            (DEFAULT_DTYPE, {0: ["float16" if device == "cuda" else "bfloat16"]}),
            (LOSS_IN_LOW_PRECISION, {1: [dtype]}),
            (MODEL_CAST, {2: [dtype]}),
            (MODEL_CAST, {1: [dtype], 2: [dtype]}),
        ]
    for cause, differences in mistakes:
        expected = tuple(differences.get(index, value) for index, value in enumerate(right))
        if seen == expected and seen != right:
            return cause
    return None


def cause_of_steps(run: PrecisionRun, case: Precision, dtype: str, epochs: int, device: str) -> Cause | None:
    """The mistake that leads to another number of steps than there are batches in all epochs."""
    if cause_of_dtypes(run, dtype, device) is LOSS_IN_LOW_PRECISION and dtype == "float16":
        skipped = _skipped(reference.untrained_losses(case) * epochs)
        if _counts(run.result) == (epochs * len(case.sizes) - skipped, skipped):
            return LOSS_IN_LOW_PRECISION
    return None


def cause_of_report(reply: PrecisionReply, case: Precision, dtype: str, epochs: int) -> Cause | None:
    """The mistake in what a training in `dtype` reports."""
    run, result = reply.runs[dtype], reply.runs[dtype].result
    if cause := cause_of_steps(run, case, dtype, epochs, reply.device):
        return cause
    if not any(mode for note in run.forwards for mode in note.training):
        return EVALUATION_MODE
    losses, loss = result.get("losses"), reference.untrained_loss(case)
    if dtype == "float16" and isinstance(losses, list) and losses and isinstance(losses[0], float):
        if abs(losses[0] / (LossScale().scale * loss) - 1) <= LOSS_ERROR:
            return LOSSES["scaled_loss_reported"]
        if abs(losses[0] / loss - 1) > LOSS_ERROR:
            return None
    peak = result.get("peak_bytes")
    if reply.device == "cuda" and isinstance(peak, int):
        if 0 < peak < run.most_bytes:
            return LEFT_AT_THE_END
        if reply.idle_bytes <= peak <= reply.idle_bytes + run.most_bytes:
            return EARLIER_PEAK
    return None


def cause_of_evaluation(evaluation: Evaluation, dtype: str | None) -> Cause | None:
    """The mistake in a call of `evaluate`."""
    if evaluation.during and all(evaluation.during):
        return EVALUATED_IN_TRAINING_MODE
    # The default of autocast is float16 on a GPU, and bfloat16 on a CPU.
    others = [[name] for name in LOW_PRECISIONS if name != dtype]
    return DEFAULT_DTYPE if dtype in LOW_PRECISIONS and evaluation.products in others else None


def cause_of_defaults(case: Classification, exact: DefaultsRun) -> Cause | None:
    """The mistake that leads to the weights of a training in float32 without an optimizer."""
    start = reference.start(case)
    if relative_error(exact.after, reference.trained(case, cleared=False), start) <= ADAM_ERROR:
        return MISTAKES["never_cleared"]
    if relative_error(exact.after, reference.trained(case, weight_decay=0.01), start) <= ADAM_ERROR:
        return ADAMW
    return None


def cause_of_scales(case: Classification, runs: Sequence[tuple[str, int, DefaultsRun]]) -> Cause | None:
    """The mistake in steps and scales of trainings, each with its dtype and epochs, with the default scaler or none."""
    loss = reference.untrained_loss_of(case)
    counted = [_counts(run.result) for dtype, _, run in runs if dtype == "float16"]
    skipped = [_skipped([loss] * epochs) for dtype, epochs, _ in runs if dtype == "float16"]
    taken = [epochs for dtype, epochs, _ in runs if dtype == "float16"]
    if any(skipped) and counted == [(count - missed, missed) for count, missed in zip(taken, skipped, strict=True)]:
        return LOSS_IN_LOW_PRECISION
    scaled = {dtype for dtype, _, run in runs if run.result.get("final_scale") == LossScale().scale} - {"float16"}
    return next((cause for dtype, cause in OTHERS_SCALED.items() if dtype in scaled), None)


def _counts(result: AmpResult) -> tuple[object, object]:
    return result.get("optimizer_steps"), result.get("skipped_steps")


def _skipped(losses: Sequence[float]) -> int:
    """Steps that are skipped where these losses, one per step, are multiplied by the default scale in float16."""
    scaling, skipped = LossScale(), 0
    for loss in losses:
        overflow = scaling.scale * loss > reference.LARGEST_FLOAT16
        skipped += overflow
        scaling.update(overflow)
    return skipped
