"""Training steps that the course runs itself on the same device, right ones and such with a mistake."""

from __future__ import annotations

from collections.abc import Sequence

from gradebox.run.assertions import mebibytes, number
from gradebox.run.submission import Submission
from grader.lab1.memory.cases import Network, Profile, ReferenceSteps
from grader.lab1.memory.reference import Reference, Stages, references


def measured(
    submission: Submission, runs: Sequence[Network], kept: int, freed: int, mistake: str = ""
) -> list[Reference]:
    """The reference of each step, which makes the mistake with this name, if one is named."""
    inputs = ReferenceSteps(runs=list(runs), kept=kept, freed=freed, mistake=mistake)
    reply = submission.probe(inputs, values=False, student=False)
    return references(reply.stages, kept, mebibytes(kept))


def like(reference: Reference, profile: Profile) -> Stages:
    """The stages with the implementation of Adam that the student seems to use."""
    peak = next((stage["peak_bytes"] for stage in profile["stages"] if stage["stage"] == "step"), 0)
    return reference.like(number(peak, "peak_bytes of stage 'step'"))
