"""The mistakes that checks of Lab 4's large training recognise: a reference with the mistake comes to the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gradebox.run.assertions import Cause
from grader.lab4.oom.cases import OtherTraining, SmallModel, Trainings, TrainingsReply
from grader.lab4.oom.reference import (
    MISTAKES,
    REPORTS,
    VALIDATED,
    Batch,
    Losses,
    Mistake,
    Report,
    Training,
    Validated,
    trained,
)

_SAME_LOSSES = "lab4.oom.same_losses"
_SHARE = "Weigh each micro-batch by its share of the batch's samples, in the gradient and in the loss that is reported."
_VALIDATION = "Add up each micro-batch's loss times its samples, and divide by all samples of the loader once."


def _cause(name: str, mistake: str, hint: str) -> Cause:
    return Cause(name, hint, _SAME_LOSSES, mistake=mistake)


ONLY_THE_FIRST_PART = _cause(
    "only_the_first_part",
    "Only the first micro-batch of each batch is used",
    "Go on to the next micro-batch until all samples of the batch have been used, then step.",
)
_MISTAKES: Mapping[Mistake, Cause] = {
    "only_the_first_part": ONLY_THE_FIRST_PART,
    "short_part_left_out": _cause(
        "short_part_left_out",
        "The last micro-batch of a batch is left out if it is shorter than the others",
        "Use the short micro-batch at the end of a batch as well, weighed by its share of the samples.",
    ),
    "mean_of_means": _cause(
        "mean_of_means", "Each micro-batch counts the same, although the last one is shorter (mean of means)", _SHARE
    ),
    "gradients_without_shares": _cause(
        "gradients_without_shares",
        "The gradients of the micro-batches are added up and not divided: the loss is not weighed by its share",
        _SHARE,
    ),
    "step_per_micro_batch": _cause(
        "step_per_micro_batch",
        "The optimizer steps after each micro-batch",
        "Take one step per batch: clear the gradients before its first micro-batch, and step after its last one.",
    ),
    "cleared_in_between": _cause(
        "cleared_in_between",
        "The gradients are cleared before each micro-batch, so that only the last one's count (zero_grad)",
        "Call zero_grad() once per batch, before its first micro-batch.",
    ),
    "never_cleared": _cause(
        "never_cleared",
        "Gradients are never cleared",
        "Call optimizer.zero_grad() once per batch, before its first micro-batch.",
    ),
}
REPORTED: Mapping[Report, Cause] = {
    "of_the_last_part": _cause(
        "loss_of_the_last_part", "The loss reported for a batch is that of its last micro-batch", _SHARE
    ),
    "mean_of_means": _cause(
        "loss_as_mean_of_means", "In the loss that is reported each micro-batch counts the same (mean of means)", _SHARE
    ),
    "sum_of_means": _cause(
        "loss_without_shares", "The losses of the micro-batches are added up and not weighed by their share", _SHARE
    ),
}
VALIDATION: Mapping[Validated, Cause] = {
    "mean_of_batches": _cause(
        "validation_by_batches", "In the validation loss each batch counts the same, whatever its size", _VALIDATION
    ),
    "mean_of_micro_batches": _cause(
        "validation_by_micro_batches",
        "In the validation loss each micro-batch counts the same, whatever its size (mean of means)",
        _VALIDATION,
    ),
    "squared_error": _cause(
        "validation_with_another_loss",
        "Validation measures the squared error, whatever criterion is given",
        "Call the given criterion in validation, too.",
    ),
}


@dataclass(frozen=True)
class _Observed:
    """A training, and what a submission's came to."""

    start: Callable[[], Training]
    epochs: int
    micro_batch: int
    losses: object
    validation_losses: object
    weights: ArrayLike


def cause_of(
    model: SmallModel,
    inputs: Trainings,
    batches: Sequence[Batch],
    validation: Sequence[Batch],
    reply: TrainingsReply,
    tolerance: float,
) -> Cause | None:
    """The mistake that explains all trainings in float64: their weights, or else what is reported of them."""

    def start(other: OtherTraining | None) -> Callable[[], Training]:
        absolute = other is not None and other.criterion_given
        return lambda: Training(model.weights, model.biases, inputs.learning_rate, absolute=absolute)

    result = reply.result
    observed = [
        _Observed(
            start(None),
            inputs.epochs,
            inputs.micro_batch,
            result["losses"],
            result["validation_losses"],
            reply.weights,
        ),
        *(
            _Observed(
                start(other),
                other.epochs,
                # Two samples are one of two tokens.
                other.micro_batch * (2 if other.sequence else 1),
                ended.result["losses"],
                ended.result["validation_losses"],
                ended.weights,
            )
            for other, ended in zip(inputs.others, reply.others, strict=True)
        ),
    ]

    def explains(
        compared: Callable[[_Observed, Losses], bool],
        mistake: Mistake | None = None,
        report: Report | None = None,
        validated_by: Validated | None = None,
    ) -> bool:
        return all(
            compared(
                each,
                trained(
                    each.start(),
                    batches,
                    validation,
                    each.epochs,
                    micro_batch=each.micro_batch,
                    mistake=mistake,
                    report=report,
                    validated_by=validated_by,
                ),
            )
            for each in observed
        )

    def weights(each: _Observed, losses: Losses) -> bool:
        return _same(each.weights, losses.weights, tolerance)

    def reported(each: _Observed, losses: Losses) -> bool:
        return _same(each.losses, losses.training, tolerance)

    def validated(each: _Observed, losses: Losses) -> bool:
        return _same(each.validation_losses, losses.validation, tolerance)

    for mistake in MISTAKES:
        if explains(weights, mistake=mistake):
            return _MISTAKES[mistake]
    if not explains(weights):
        return None
    if not explains(reported):
        return next((REPORTED[report] for report in REPORTS if explains(reported, report=report)), None)
    return next((VALIDATION[by] for by in VALIDATED if explains(validated, validated_by=by)), None)


def _same(observed: object, expected: ArrayLike, tolerance: float) -> bool:
    try:
        actual = np.asarray(observed, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    right = np.asarray(expected)
    return actual.shape == right.shape and bool(
        np.allclose(actual, right, rtol=tolerance, atol=tolerance, equal_nan=False)
    )
