"""Inputs of control experiments: the unstable model again, without a student's tools that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.stability.cases.unstable import GainCase, StepsCase, UnstableReply, UnstableStepsReply

TOOLS = {
    "nonfinite_gradients_named": "find_nonfinite",
    "first_bad_layer_traced": "trace_nonfinite",
    "loss_scale_adapts": "DynamicLossScale",
}
"""Functions and classes of a student's that train_unstable uses, by the check that is about each."""


@dataclass(frozen=True, kw_only=True)
class UnstableWithTools(ProbeInputs[UnstableReply], probe="lab2.stability.unstable.digits_with_tools"):
    """`unstable.Unstable`, with some of the student's `TOOLS` replaced by the course's."""

    sizes: list[int]
    order: Array
    cases: list[GainCase]
    replaced: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class UnstableStepsWithTools(ProbeInputs[UnstableStepsReply], probe="lab2.stability.unstable.steps_with_tools"):
    """The same of `UnstableSteps`."""

    weights: dict[str, Array]
    images: Array
    sizes: list[int]
    cases: list[StepsCase]
    replaced: Sequence[str]


SPACES = ()
WITHOUT = {
    UnstableWithTools.probe: "the unstable model again, as a control experiment",
    UnstableStepsWithTools.probe: "the unstable model again, as a control experiment",
}
