"""Recognises mistakes of the loss scale by hand, and of the training that uses it, by what they lead to."""

from __future__ import annotations

from collections.abc import Sequence

from gradebox.run.assertions import Cause
from grader.lab2.shared.reference import relative_error
from grader.lab2.stability import reference
from grader.lab2.stability.cases.loss_scale import LossScales
from grader.lab2.stability.cases.unstable import StepsCase, StepsRun, UnstableSteps

_SCALE = "lab2.stability.loss_scale_adapts"
_UNSTABLE = "lab2.stability.unstable_model_trained"

SCALES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        Cause(
            "never_reset",
            "Set the count of good steps to 0 after an overflow.",
            _SCALE,
            mistake="An overflow does not begin the count of good steps again",
        ),
        Cause(
            "each_good_step",
            "Count good steps, and let the scale grow after `growth_interval` of them in a row.",
            _SCALE,
            mistake="The scale grows after every good step, whatever growth_interval says",
        ),
        Cause(
            "one_step_late",
            "Let the scale grow with the step that completes `growth_interval` good ones.",
            _SCALE,
            mistake="The loss scale grows one step late",
        ),
        Cause(
            "never_grows",
            "Let the scale grow after `growth_interval` good steps in a row.",
            _SCALE,
            mistake="The loss scale never grows",
        ),
    )
}
TRAININGS: dict[str, Cause] = {
    "never_cleared": Cause(
        "unstable_never_cleared",
        "Set the gradients to None before each backward pass: `optimizer.zero_grad()`.",
        _UNSTABLE,
        mistake="Gradients of the unstable model are never cleared",
    ),
    "never_unscaled": Cause(
        "unstable_never_unscaled",
        "Divide the gradients by the scale before the optimizer's step.",
        _UNSTABLE,
        mistake="The optimizer gets gradients with their scale: they are never unscaled",
    ),
}


def cause_of_scales(inputs: LossScales, observed: Sequence[Sequence[object]]) -> Cause | None:
    """The mistake that leads to the scales of all cases."""

    def is_seen(mistake: str) -> bool:
        return all(
            isinstance(scale, float) and (scale == expected or abs(scale - expected) <= 1e-9 * expected)
            for case, scales in zip(inputs.cases, observed, strict=True)
            for scale, expected in zip(
                scales, reference.mistaken_scales(case.settings, case.overflows, mistake), strict=True
            )
        )

    return next((cause for mistake, cause in SCALES.items() if is_seen(mistake)), None)


def cause_of_steps(inputs: UnstableSteps, pairs: Sequence[tuple[StepsCase, StepsRun]], *, error: float) -> Cause | None:
    """The mistake that leads to the weights of all of these trainings in float32."""

    def is_seen(mistake: str) -> bool:
        start = reference.start(inputs)
        return all(
            relative_error(run.after, reference.follow(inputs, case, mistake).weights, start) <= error
            for case, run in pairs
        )

    if is_seen(""):
        return None
    return next((cause for mistake, cause in TRAININGS.items() if is_seen(mistake)), None)
