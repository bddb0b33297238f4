"""`GradingRequest`, which decides a grade, and what follows from it: which checks run, in which order."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradebox.course.course import Course, CourseError
from gradebox.course.criterion import CheckFunction
from gradebox.course.rubric import Lab, Rubric
from gradebox.run.overrides import Override
from gradebox.sandbox.devices import Device


class GradingError(Exception):
    """Nothing can be graded; the message is one line that says what to do."""


@dataclass(frozen=True)
class GradingRequest:
    """Everything that decides a grade. Times and paths aside, the same order gives the same grade."""

    course: Course
    submission: Path
    """The folder to grade. It is copied once, before anything runs."""
    rubric: Rubric
    labs: tuple[Lab, ...]
    """Those of the rubric to grade, perhaps cut down to some criteria; see `Course.select`."""
    device: Device
    seed: int
    name: str = ""
    """What the submission is called in the grade; its folder's path without it."""
    overrides: tuple[Override, ...] = ()
    """Points given by hand to this student."""
    time_limit_seconds: float | None = None
    """For the whole grading; what it leaves out is a person's to judge."""
    jobs: int = 1
    """Sandboxes that are used side by side."""
    only: frozenset[str] | None = None
    """Checks to ask, after those that they build on, instead of all of the labs."""


@dataclass
class CheckGroup:
    """Checks that are asked one after the other, in the rubric's order, because they build on each other."""

    checks: list[CheckFunction] = field(default_factory=list)

    @property
    def early(self) -> bool:
        """Whether it is begun before others."""
        return any(check.early for check in self.checks)


def plan_of(order: GradingRequest) -> tuple[CheckFunction, ...]:
    """The checks to ask, in the rubric's order: those of the order, and those that they build on, which earn nothing.

    Raises:
        GradingError: rubric and checks disagree, or a check requires or builds on one that does not come before it.
    """
    order.course.prepare()
    known = [check.id for check in order.rubric.checks()]
    chosen = {check.id for lab in order.labs for criterion in lab.criteria for check in criterion.checks}
    planned = chosen if order.only is None else chosen & order.only
    labs = {lab.id: lab for lab in order.rubric.labs}
    checks: dict[str, CheckFunction] = {}
    for name in reversed(known):
        if name not in planned:
            continue
        if name not in checks:
            try:
                checks |= order.course.checks(labs[name.partition(".")[0]])
            except CourseError as error:
                raise GradingError(str(error)) from None
        for trouble in out_of_order(checks[name], known):
            raise GradingError(trouble)
        planned = planned | set(checks[name].requires)
    return tuple(checks[name] for name in known if name in planned)


def out_of_order(check: CheckFunction, known: Sequence[str]) -> Iterator[str]:
    """Why a check cannot build on what it requires; `known` are the ids of all checks, in the rubric's order."""
    before = known[: known.index(check.id)]
    for verb, needed in (
        *(("requires", name) for name in check.requires),
        *(("builds on", name) for name in check.builds_on),
    ):
        if needed not in known:
            near = difflib.get_close_matches(needed, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            yield f"{check.place}: {check.id} {verb} {needed}, which no rubric has{meant}"
        elif needed not in before:
            yield f"{check.place}: {check.id} {verb} {needed}, which does not come before it in the rubric"


def titles_of(order: GradingRequest, plan: Sequence[CheckFunction]) -> Mapping[str, str]:
    """What people call the checks that are graded, asked or not, and those that they build on.

    Raises:
        GradingError: rubric and checks disagree.
    """
    try:
        return {**order.course.titles(order.labs), **{check.id: check.title for check in plan}}
    except CourseError as error:
        raise GradingError(str(error)) from None


def check_groups(plan: Sequence[CheckFunction]) -> list[CheckGroup]:
    """The checks by criterion; those of two criteria, where one builds on the other, in one lane."""
    lane_of: dict[str, CheckGroup] = {}
    lanes: list[CheckGroup] = []
    for check in plan:
        names = dict.fromkeys(
            [check.id.rpartition(".")[0], *(required.rpartition(".")[0] for required in check.requires)]
        )
        identities = list(dict.fromkeys(id(lane_of[name]) for name in names if name in lane_of))
        joined = [lane for lane in lanes if id(lane) in identities]
        lane = joined[0] if joined else CheckGroup()
        if not joined:
            lanes.append(lane)
        for other in joined[1:]:
            lane.checks += other.checks
            lanes.remove(other)
        for name in lane_of:
            if any(lane_of[name] is other for other in joined[1:]):
                lane_of[name] = lane
        lane_of.update(dict.fromkeys(names, lane))
        lane.checks.append(check)
    return lanes
