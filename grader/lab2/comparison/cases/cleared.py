"""Inputs of a control experiment: accuracies again, of trainings whose gradients are cleared."""

from __future__ import annotations

from dataclasses import dataclass

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.comparison.cases.measuring import AccuraciesReply


@dataclass(frozen=True, kw_only=True)
class ClearedAccuracies(ProbeInputs[AccuraciesReply], probe="lab2.comparison.cleared.accuracies"):
    """`measuring.Accuracies`, with gradients that are cleared."""

    first: Array
    second: Array
    order: Array
    wrong: Array
    epochs: int
    precisions: list[str]


SPACES = ()
WITHOUT = {ClearedAccuracies.probe: "the accuracies again, as a control experiment"}
