"""Steps that we time ourselves with a mistake in it, to recognise the mistake in what a submission measured."""

from __future__ import annotations

from dataclasses import dataclass

from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab3.scaling.cases.measuring import Steps, TimedReply


@dataclass(frozen=True, kw_only=True)
class TimedWrongly(Steps, ProbeInputs[TimedReply], probe="lab3.scaling.reference_run.timed_wrongly"):
    """The steps of `Timed`, timed with a mistake."""

    mistake: str
    """One of `reference_run.MISTAKES`."""


WITHOUT = {TimedWrongly.probe: "our own reference of `measured`, with a mistake"}
