"""Inputs of control experiments in which gradients are cleared after each optimizer step, whoever forgets it."""

from __future__ import annotations

from dataclasses import dataclass

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.comparison.cases.measuring import AccuraciesReply
from grader.lab2.shared.cases import DigitsReply


@dataclass(frozen=True, kw_only=True)
class ClearedDigits(ProbeInputs[DigitsReply], probe="lab2.comparison.clearing.digits"):
    """`grader.lab2.shared.cases.Digits`, with gradients that are cleared."""

    first: Array
    second: Array
    order: Array
    epochs: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class ClearedAccuracies(ProbeInputs[AccuraciesReply], probe="lab2.comparison.clearing.accuracies"):
    """`grader.lab2.comparison.cases.measuring.Accuracies`, with gradients that are cleared."""

    first: Array
    second: Array
    order: Array
    wrong: Array
    epochs: int
    precisions: list[str]


SPACES = ()
WITHOUT = {
    ClearedDigits.probe: "the digits again, as a control experiment",
    ClearedAccuracies.probe: "the accuracies again, as a control experiment",
}
