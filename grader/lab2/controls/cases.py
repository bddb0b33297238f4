"""Inputs of control experiments: trainings again without a mistake that is known, or supposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.comparison.cases.measuring import AccuraciesReply
from grader.lab2.shared.cases import DigitsReply
from grader.lab2.stability.cases.unstable import GainCase, StepsCase, UnstableReply, UnstableStepsReply


@dataclass(frozen=True, kw_only=True)
class ClearedDigits(ProbeInputs[DigitsReply], probe="lab2.controls.digits"):
    """`grader.lab2.shared.cases.Digits`, with gradients that are cleared."""

    first: Array
    second: Array
    order: Array
    epochs: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class ClearedAccuracies(ProbeInputs[AccuraciesReply], probe="lab2.controls.accuracies"):
    """`grader.lab2.comparison.cases.measuring.Accuracies`, with gradients that are cleared."""

    first: Array
    second: Array
    order: Array
    wrong: Array
    epochs: int
    precisions: list[str]


TOOLS = {
    "nonfinite_gradients_named": "find_nonfinite",
    "first_bad_layer_traced": "trace_nonfinite",
    "loss_scale_adapts": "DynamicLossScale",
}
"""Functions and classes of a student's that train_unstable uses, by the check that is about each."""


@dataclass(frozen=True, kw_only=True)
class UnstableWithTools(ProbeInputs[UnstableReply], probe="lab2.controls.unstable"):
    """`grader.lab2.stability.cases.unstable.Unstable`, with some of the student's `TOOLS` replaced by the course's."""

    sizes: list[int]
    order: Array
    cases: list[GainCase]
    replaced: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class UnstableStepsWithTools(ProbeInputs[UnstableStepsReply], probe="lab2.controls.unstable_steps"):
    """The same of `UnstableSteps`."""

    weights: dict[str, Array]
    images: Array
    sizes: list[int]
    cases: list[StepsCase]
    replaced: Sequence[str]


SPACES = ()
WITHOUT = {
    ClearedDigits.probe: "the digits again, as a control experiment",
    ClearedAccuracies.probe: "the accuracies again, as a control experiment",
    UnstableWithTools.probe: "the unstable model again, as a control experiment",
    UnstableStepsWithTools.probe: "the unstable model again, as a control experiment",
}
