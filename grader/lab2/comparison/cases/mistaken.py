"""Inputs of the course's own training steps with a mistake in how they are run or timed."""

from __future__ import annotations

from dataclasses import dataclass

from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab2.comparison.cases.measuring import Network, Plan

MISTAKES = ("", "not_waited", "batch_moved", "batch_moved_again", "model_cast", "models_kept")
"""What is done wrong in all steps; nothing, the clock stops too early, the batch comes from the host in each step or is
on the device besides, the model is cast, and all models stay on the device."""


@dataclass(frozen=True)
class MistakenRow:
    """What steps in one precision take."""

    seconds: list[float]
    """Of each timed step."""
    peak_bytes: int


@dataclass(frozen=True)
class MistakenReply:
    """By precision."""

    rows: dict[str, MistakenRow]


@dataclass(frozen=True, kw_only=True)
class MistakenSteps(ProbeInputs[MistakenReply], probe="lab2.comparison.mistaken.steps"):
    """The steps of a plan, with one of `MISTAKES`."""

    network: Network
    plan: Plan
    mistake: str


SPACES = ()
WITHOUT = {MistakenSteps.probe: "our own measurement, without the submission"}
