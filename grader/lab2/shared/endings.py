"""Recognises the mistake where PyTorch itself says what is wrong with a training, and raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gradebox.run.assertions import Cause, CheckFailed
from gradebox.run.submission import Submission
from gradebox.sandbox.probe_types import ProbeInputs

Observation = TypeVar("Observation")

MODEL_CAST = Cause(
    "model_cast",
    "Leave the model in float32. Autocast casts for each product; in weights of 16 bits small updates get lost.",
    "lab2.amp.parameters_and_state_stay_float32",
    mistake="The model itself is cast to 16 bits",
)
NEVER_UPDATED = Cause(
    "never_updated",
    "Call `scaler.update()` once after each `scaler.step(optimizer)`.",
    "lab2.scaling.scale_follows_its_settings",
    mistake="The scaler is never updated, and refuses the second step",
)
UNSCALED_TWICE = Cause(
    "unscaled_twice",
    "Call `scaler.unscale_(optimizer)` once per window, after its last backward pass.",
    "lab2.scaling.accumulation_equals_one_large_batch",
    mistake="Gradients are unscaled more than once per step, as after each batch of a window",
)
_ENDINGS = {
    "Attempting to unscale FP16 gradients": MODEL_CAST,
    "step() has already been called since the last update()": NEVER_UPDATED,
    "unscale_() has already been called on this optimizer since the last update()": UNSCALED_TWICE,
}
"""What `torch.amp.GradScaler` says, by what it says it of."""


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except CheckFailed as error:
        cause = next((cause for text, cause in _ENDINGS.items() if text in error.message), None)
        if error.answered or cause is None:
            raise
        raise CheckFailed(
            error.message, cause, answered=False, picture=error.picture, evidence=error.evidence
        ) from error


def trained_by(submission: Submission, inputs: ProbeInputs[Observation], **options: Any) -> Observation:
    """What a probe of trainings observed; where one ended with what the scaler says is wrong, this is the cause."""
    with _named():
        return submission.numeric_probe(inputs, **options)
