"""Compares a memory profile with the reference, stage by stage, and recognises a mistake that it shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from gradebox.run.assertions import mebibytes, number, picturing, recognising, require, require_between
from gradebox.run.pictures import Picture, bars
from grader.lab1.memory.cases import Network, Profile, Stage
from grader.lab1.memory.checks.mistakes import ALONE, Profiled, mistake_of
from grader.lab1.memory.checks.reference_runs import like
from grader.lab1.memory.reference import TOLERANCE, Reference, Stages, parameter_interval
from labkit.results import STAGES

_WITHOUT_CASTS = ("baseline", "zero_grad")
"""Stages in which nothing is cast."""
_TURNS = 2
"""How often what is kept too much in a step may grow after it fell, or fall after it grew."""


def require_parameters(held: float, widths: Sequence[int], bytes_per_element: int, what: str, hint: str = "") -> None:
    """Fail unless `held` bytes are what these parameters take on the device."""
    least, most = parameter_interval(widths, bytes_per_element)
    shown = f"{mebibytes(least)}, and at most {mebibytes(most - least)} more in blocks that were not split"
    require_between(held, 0.99 * least, 1.01 * most, what=what, show=mebibytes, expected=shown, hint=hint)


def allocated(profile: Profile, what: str) -> dict[str, float]:
    """Allocated bytes by stage, of all stages."""
    stages = {stage["stage"]: stage for stage in profile["stages"] if isinstance(stage["stage"], str)}
    missing = [name for name in STAGES if name not in stages]
    require(
        not missing, f"{what}: there is no stage {', '.join(missing)}", "Return one StageMemory for each of STAGES."
    )
    return {name: number(stages[name]["allocated_bytes"], f"{what}: allocated_bytes of {name!r}") for name in STAGES}


def require_stages(profiled: Profiled, field: str, hint: str, names: Sequence[str] = ALONE) -> None:
    """Fail unless a field agrees in every stage of each step, within a share of the step's peak."""
    with recognising(lambda: mistake_of(profiled, field, names)):
        for network, reference, profile, share in _judged(profiled, field):
            stages = like(reference, profile)
            slack = _slack(stages, share)
            figures = [(stage, dict[str, object](stage)[field]) for stage in profile["stages"]]
            more_of = _beyond(profile, stages, slack)
            with picturing(partial(_bars, field, figures, stages)):
                for (stage, actual), more in zip(figures, more_of, strict=True):
                    expected = _of(stages, stage)[field]
                    if field != "allocated_bytes" and _follows(actual, expected, more, slack):
                        continue  # of what is allocated, another check judges
                    if network.get("dtype") and field == "peak_bytes" and stage["stage"] not in _WITHOUT_CASTS:
                        continue  # a model may be cast before or after it is moved, and a batch early or late
                    require_between(
                        actual,
                        expected - slack,
                        expected + slack,
                        what=f"{field} of stage {stage['stage']!r}{reference.what}",
                        show=mebibytes,
                        expected=f"{mebibytes(expected)}, give or take {mebibytes(slack)}",
                        hint=hint,
                    )


def require_falls(profiled: Profiled, hint: str) -> None:
    """Fail unless the peak of every stage is as far below the largest as it should, within the same TOLERANCE.

    A peak that is too large, or too small, by what the profile says is allocated too much, or missing, is none of this
    check's business.
    """
    _, reference, profile, _ = profiled.steps[0]
    stages = like(reference, profile)
    largest = max(stage["peak_bytes"] for stage in stages.values())
    slack = TOLERANCE * largest
    actual = [number(stage["peak_bytes"], "peak_bytes") for stage in profile["stages"]]
    expected = [largest - _of(stages, stage)["peak_bytes"] for stage in profile["stages"]]
    if all(
        _follows(peak, largest - fall, more, slack)
        for peak, fall, more in zip(actual, expected, _beyond(profile, stages, slack), strict=True)
    ):
        return
    with recognising(lambda: mistake_of(profiled, "peak_bytes", ALONE)):
        for stage, peak, fall in zip(profile["stages"], actual, expected, strict=True):
            require_between(
                max(actual) - peak,
                fall - slack,
                fall + slack,
                what=f"how far peak_bytes of stage {stage['stage']!r} is less than the largest of the step"
                f"{reference.what}",
                show=mebibytes,
                expected=f"{mebibytes(fall)}, give or take {mebibytes(slack)}",
                hint=hint,
            )


def _judged(profiled: Profiled, field: str) -> Iterator[tuple[Network, Reference, Profile, float]]:
    """A model may be cast before or after it is moved: what is reserved depends on that."""
    for step in profiled.steps:
        if field != "reserved_bytes" or "dtype" not in step[0]:
            yield step


def _slack(stages: Stages, share: float) -> float:
    return share * max(stage["peak_bytes"] for stage in stages.values())


def _beyond(profile: Profile, stages: Stages, slack: float) -> list[tuple[float, float]]:
    """How much more than it should is allocated where each stage begins and where it ends, by the profile's own words.

    The first one begins with what is there when it ends, because nothing of the step is there yet. Made-up words excuse
    nothing: a step keeps no more than it takes, and does not again and again let go what it has just taken.
    """
    ends: list[float] = []
    for stage in profile["stages"]:
        size, more = stage["allocated_bytes"], 0.0
        if isinstance(size, (int, float)) and math.isfinite(size):
            more = size - _of(stages, stage)["allocated_bytes"]
        ends.append(more)
    changes = [after - before for before, after in pairwise(ends) if abs(after - before) > slack]
    turns = sum((one > 0) != (other > 0) for one, other in pairwise(changes))
    if turns > _TURNS or max(map(abs, ends)) > max(stage["peak_bytes"] for stage in stages.values()):
        ends = [0.0] * len(ends)
    return list(zip([ends[0], *ends[:-1]], ends, strict=True))


def _follows(actual: object, expected: float, more: tuple[float, float], slack: float) -> bool:
    """Whether a figure is right but for what is allocated too much, or missing, in its stage."""
    if not isinstance(actual, (int, float)):
        return False
    return expected + min(more) - slack <= actual <= expected + max(more) + slack


def _of(stages: Stages, stage: Stage) -> Mapping[str, int]:
    """The reference of a stage, whose name a check has looked at before."""
    figures = stages[str(stage["stage"])]
    return {
        "allocated_bytes": figures["allocated_bytes"],
        "reserved_bytes": figures["reserved_bytes"],
        "peak_bytes": figures["peak_bytes"],
    }


def _bars(field: str, figures: Sequence[tuple[Stage, object]], stages: Stages) -> Picture | None:
    sizes: list[tuple[str, float]] = []
    for stage, size in figures:
        if not isinstance(size, (int, float)) or not math.isfinite(size):
            return None
        sizes.append((str(stage["stage"]), size / 2**20))
    expected = [(str(stage["stage"]), _of(stages, stage)[field] / 2**20) for stage, _ in figures]
    return bars(f"{field} of each stage", "MiB", sizes, expected)
