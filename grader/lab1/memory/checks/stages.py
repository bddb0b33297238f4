"""Compares a memory profile with the reference, stage by stage, and recognises a mistake that it shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gradebox.run.assertions import Cause, mebibytes, number, picturing, recognising, require, require_between
from gradebox.run.pictures import Picture, bars
from gradebox.run.submission import Submission
from grader.lab1.memory.cases import Network, Profile, ReferenceSteps, Stage
from grader.lab1.memory.reference import TOLERANCE, Reference, Stages, parameter_interval, references
from labkit.results import STAGES

_UNITS = "the figures are in bytes"
LET_GO = Cause(
    "let_go",
    "something that a training loop keeps is gone before its stage ends: batch, output and loss have a name until "
    "then (`inputs = inputs.to(device)`; a batch that is moved within the call of the model is kept by nobody)",
    "lab1.memory.allocated_equals_reference",
)


def measured(submission: Submission, runs: Sequence[Network], kept: int, freed: int) -> list[Reference]:
    """Run the steps by ourselves on the same device."""
    inputs = ReferenceSteps(runs=list(runs), kept=kept, freed=freed)
    reply = submission.probe(inputs, values=False, student=False)
    return references(reply.stages, kept, mebibytes(kept))


def require_parameters(held: float, widths: Sequence[int], bytes_per_element: int, what: str, hint: str = "") -> None:
    """Fail unless `held` bytes are what these parameters take on the device."""
    least, most = parameter_interval(widths, bytes_per_element)
    shown = f"{mebibytes(least)}, and at most {mebibytes(most - least)} more in blocks that were not split"
    require_between(held, 0.99 * least, 1.01 * most, what=what, show=mebibytes, expected=shown, hint=hint)


def allocated(profile: Profile, what: str) -> dict[str, float]:
    """Allocated bytes by stage, of all stages."""
    stages = {stage["stage"]: stage for stage in profile["stages"] if isinstance(stage["stage"], str)}
    missing = [name for name in STAGES if name not in stages]
    require(not missing, f"{what}: there is no stage {', '.join(missing)}", "one StageMemory for each of STAGES")
    return {name: number(stages[name]["allocated_bytes"], f"{what}: allocated_bytes of {name!r}") for name in STAGES}


def _like(reference: Reference, profile: Profile) -> Stages:
    """The stages with the implementation of Adam that the student seems to use."""
    peak = next((stage["peak_bytes"] for stage in profile["stages"] if stage["stage"] == "step"), 0)
    return reference.like(number(peak, "peak_bytes of stage 'step'"))


def _slack(stages: Stages, share: float = TOLERANCE) -> float:
    return share * max(stage["peak_bytes"] for stage in stages.values())


def _mistake_of(reference: Reference, profile: Profile) -> Cause | None:
    """Something that was let go of: the same bytes are missing of what is allocated at the end of some stages, and
    nowhere is anything too much."""
    stages = _like(reference, profile)
    slack = _slack(stages)
    missing = []
    for stage in profile["stages"]:
        size = stage["allocated_bytes"]
        if not isinstance(size, (int, float)) or not math.isfinite(size):
            return None
        missing.append(_of(stages, stage)["allocated_bytes"] - size)
    short = [size for size in missing if size > slack]
    if not short or min(missing) < -slack or max(short) - min(short) > slack:
        return None
    return LET_GO


def _of(stages: Stages, stage: Stage) -> Mapping[str, int]:
    """The reference of a stage, whose name a check has looked at before."""
    figures = stages[str(stage["stage"])]
    return {
        "allocated_bytes": figures["allocated_bytes"],
        "reserved_bytes": figures["reserved_bytes"],
        "peak_bytes": figures["peak_bytes"],
    }


def require_stages(reference: Reference, profile: Profile, field: str, hint: str, *, share: float = TOLERANCE) -> None:
    """Fail unless `field` agrees in every stage, within a share of the step's peak."""
    stages = _like(reference, profile)
    slack = _slack(stages, share)
    figures = [(stage, dict[str, object](stage)[field]) for stage in profile["stages"]]
    with recognising(lambda: _mistake_of(reference, profile)), picturing(lambda: _bars(field, figures, stages)):
        for stage, actual in figures:
            expected = _of(stages, stage)[field]
            require_between(
                actual,
                expected - slack,
                expected + slack,
                what=f"{field} of stage {stage['stage']!r}{reference.what}",
                show=mebibytes,
                expected=f"{mebibytes(expected)}, give or take {mebibytes(slack)}",
                hint=_UNITS if _in_mebibytes(actual, expected) else hint,
            )


def require_falls(reference: Reference, profile: Profile, hint: str) -> None:
    """Fail unless the peak of every stage is as far below the largest as it should, within the same TOLERANCE."""
    stages = _like(reference, profile)
    largest = max(stage["peak_bytes"] for stage in stages.values())
    peak = max(number(stage["peak_bytes"], "peak_bytes") for stage in profile["stages"])
    slack = TOLERANCE * largest
    with recognising(lambda: _mistake_of(reference, profile)):
        for stage in profile["stages"]:
            expected = largest - _of(stages, stage)["peak_bytes"]
            require_between(
                peak - number(stage["peak_bytes"], "peak_bytes"),
                expected - slack,
                expected + slack,
                what=f"how far peak_bytes of stage {stage['stage']!r} lies below the largest of the step"
                f"{reference.what}",
                show=mebibytes,
                expected=f"{mebibytes(expected)}, give or take {mebibytes(slack)}",
                hint=hint,
            )


def _bars(field: str, figures: Sequence[tuple[Stage, object]], stages: Stages) -> Picture | None:
    sizes: list[tuple[str, float]] = []
    for stage, size in figures:
        if not isinstance(size, (int, float)) or not math.isfinite(size):
            return None
        sizes.append((str(stage["stage"]), size / 2**20))
    expected = [(str(stage["stage"]), _of(stages, stage)[field] / 2**20) for stage, _ in figures]
    return bars(f"{field} of each stage", "MiB", sizes, expected)


def _in_mebibytes(actual: object, expected: int) -> bool:
    """Whether somebody has divided."""
    return isinstance(actual, (int, float)) and any(
        0.9 * expected <= actual * unit <= 1.1 * expected for unit in (2**10, 1e6, 2**20, 2**30)
    )
