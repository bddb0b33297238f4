"""Choose what a student does next, and say why.

The order: a file that Python cannot read; a check that fails although its functions are written, which is the closest
to a point; then the first open task, in the order of the labs and of their READMEs, since later tasks build on earlier
ones. A course need not have hints, nor a lab a README: its tasks are then those that the stubs name. The scripts that
are handed out broken, and the reports, take their place among the tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from pathlib import Path

from gradebox.course.hints import Hint
from gradebox.course.rubric import Check, Lab
from gradebox.report.next_step.latest_outcomes import Known, LatestOutcomes
from gradebox.report.next_step.tasks import BrokenFile, OpenFunction, Task, in_order, survey, tasks
from gradebox.run.grade import Outcome


class Kind(StrEnum):
    """What is to be done."""

    REPAIR_FILE = "repair_file"
    FIX = "fix"
    WRITE = "write"
    GRADE = "grade"
    DONE = "done"


@dataclass(frozen=True)
class Step:
    """One thing to do."""

    kind: Kind
    lab: Lab | None = None
    task: Task | None = None
    check: str = ""
    """The check to look at: the failing one, or the first that the task pays for."""
    known: Known | None = None
    points: Decimal = Decimal(0)
    """What it can bring."""
    open: tuple[OpenFunction, ...] = ()
    broken: BrokenFile | None = None
    path: Path | None = None
    """The file to look into, where no open function says it."""

    @property
    def lines(self) -> int:
        """About so many are to be written."""
        return sum(function.lines for function in self.open)


@dataclass(frozen=True)
class Advice:
    """What to do next, and what could be done instead."""

    step: Step
    instead: tuple[Step, ...] = ()
    quick: tuple[OpenFunction, Decimal] | None = None
    """The open function of the chosen lab that brings most points per line, and those points."""
    remark: str = ""
    undecided: tuple[str, ...] = ()
    """Where nothing is to be done: checks whose result a person has to look at."""


@dataclass(frozen=True)
class LabState:
    """One lab of a submission."""

    lab: Lab
    folder: Path
    tasks: tuple[Task, ...]
    open: tuple[OpenFunction, ...]
    broken: tuple[BrokenFile, ...]
    checks: Mapping[str, Known] = field(default_factory=dict)
    begin_broken: frozenset[str] = frozenset()
    """Files handed out as something to fix or to fill in: that their checks fail does not mean that somebody tried."""

    def task(self, number: str) -> Task | None:
        return next((task for task in self.tasks if task.number == number), None)

    def order(self, number: str) -> int:
        return next((place for place, task in enumerate(self.tasks) if task.number == number), len(self.tasks))


def advise(
    submission: Path,
    labs: Sequence[Lab],
    hints: Mapping[str, Hint],
    latest: LatestOutcomes,
    begin_broken: Collection[str] = (),
) -> Advice:
    """The next step in these labs of `submission`, a folder with lab packages in it.

    `begin_broken` are names of files that are handed out as something to fix or to fill in.
    """
    states = [_state(submission, lab, latest, begin_broken) for lab in labs]
    for state in states:
        if state.broken:
            return Advice(Step(Kind.REPAIR_FILE, state.lab, broken=state.broken[0]), remark=latest.remark)
    fixing = [step for state in states for step in _to_fix(state, hints)]
    writing = [step for state in states for step in _to_write(state, hints)]
    steps = sorted(fixing, key=lambda step: -step.points) + writing
    if not steps:
        steps = [step for state in states for step in _left_over(state, hints)]
    if not steps:
        unknown = any(check.id not in state.checks for state in states for check in _checks(state.lab))
        undecided = tuple(
            check for state in states for check in state.checks if _outcome(state, check) is Outcome.NEEDS_REVIEW
        )
        step = Step(Kind.GRADE if unknown or latest.remark else Kind.DONE)
        return Advice(step, remark=latest.remark, undecided=undecided)
    first = steps[0]
    here = next(state for state in states if state.lab == first.lab)
    quick = _quickest(here, hints)
    others = tuple(steps[1:3])
    if quick is not None and (quick[0] in first.open[:1] or any(step.open == (quick[0],) for step in others)):
        quick = None
    return Advice(first, others, quick, latest.remark)


def _state(submission: Path, lab: Lab, latest: LatestOutcomes, begin_broken: Collection[str]) -> LabState:
    folder = next(
        (path for name in (lab.package, lab.package.replace("_", "-")) if (path := submission / name).is_dir()),
        submission / lab.package,
    )
    open_functions, broken = survey(folder)
    ids = {check.id for check in _checks(lab)}
    checks = {check: known for check, known in latest.checks.items() if check in ids}
    known = tasks(folder / "README.md")
    unnamed = dict.fromkeys(
        function.task for function in open_functions if all(function.task != task.number for task in known)
    )
    return LabState(
        lab,
        folder,
        (*known, *map(Task, sorted(unnamed, key=_in_parts))),
        open_functions,
        broken,
        checks,
        frozenset(begin_broken),
    )


def _in_parts(number: str) -> list[int]:
    return [int(part) for part in number.split(".")]


def _checks(lab: Lab) -> list[Check]:
    return [check for criterion in lab.criteria for check in criterion.checks]


def _is_open(hint: Hint, state: LabState) -> bool:
    """Whether a function that the check runs is still a stub."""
    still = {f"{function.path.name} {function.name}" for function in state.open}
    return not still.isdisjoint(hint.write)


def _begins_broken(hint: Hint, state: LabState) -> bool:
    return hint.write[0].partition(" ")[0] in state.begin_broken


def _to_fix(state: LabState, hints: Mapping[str, Hint]) -> list[Step]:
    """Checks that fail although what they run is written; what waits for them counts with them."""
    steps = []
    waiting: dict[str, Decimal] = {}
    worth = {check.id: check.points for check in _checks(state.lab)}
    for check, known in state.checks.items():
        if known.outcome is Outcome.BLOCKED and known.blocked_by:
            waiting[known.blocked_by] = waiting.get(known.blocked_by, Decimal(0)) + worth[check]
    for check in worth:
        last, hint = state.checks.get(check), hints.get(check)
        if last is None or last.outcome is not Outcome.FAILED or last.message.startswith("Task "):
            continue
        if last.follows_from:  # fixed with that one
            continue
        if hint is not None and (_is_open(hint, state) or _begins_broken(hint, state)):
            continue
        steps.append(_mended(state, check, last, hint, worth[check] + waiting.get(check, Decimal(0))))
    return steps


def _mended(state: LabState, check: str, known: Known, hint: Hint | None, points: Decimal) -> Step:
    if hint is None:
        return Step(Kind.FIX, state.lab, None, check, known, points)
    return Step(Kind.FIX, state.lab, state.task(hint.task), check, known, points, path=_place(state, hint))


def _left_over(state: LabState, hints: Mapping[str, Hint]) -> Iterator[Step]:
    """Checks that failed where neither code nor tasks say why: a file is missing, or a stub has other words.

    Or the lab has no tasks at all: then their hints say at least which file they are about.
    """
    for check in _checks(state.lab):
        known = state.checks.get(check.id)
        if known is not None and known.outcome is Outcome.FAILED:
            hint = hints.get(check.id)
            yield _mended(state, check.id, known, hint if hint and not hint.task else None, check.points)


def _to_write(state: LabState, hints: Mapping[str, Hint]) -> list[Step]:
    """The tasks of a lab that are still open, in the order of its README."""
    steps = []
    for task in state.tasks:
        paid = [
            check
            for check in _checks(state.lab)
            if (hint := hints.get(check.id)) is not None and hint.task == task.number
        ]
        missing = [check for check in paid if _outcome(state, check.id) is not Outcome.PASSED]
        still = in_order(state.open, task)
        begun = [check for check in missing if _begins_broken(hints[check.id], state)]
        # A grade says whether a script or a report is done; without one, it comes after what is still open.
        known = [check for check in begun if check.id in state.checks]
        if still or known or (begun and state.open and not state.checks):
            candidates = [check for check in missing if _begins(hints[check.id], still)] + missing + paid
            first = candidates[0] if candidates else None
            points = sum((check.points for check in missing), Decimal(0))
            step = Step(Kind.WRITE, state.lab, task, first.id if first else "", points=points, open=tuple(still))
            if not still and first is not None:  # to fix or to fill in: what was last seen says how far it is
                step = replace(step, path=_place(state, hints[first.id]), known=state.checks.get(first.id))
            steps.append(step)
    return steps


def _begins(hint: Hint, still: Sequence[OpenFunction]) -> bool:
    """Whether the check runs the function to begin with."""
    return bool(still) and f"{still[0].path.name} {still[0].name}" in hint.write


def _outcome(state: LabState, check: str) -> Outcome | None:
    known = state.checks.get(check)
    return None if known is None else known.outcome


def _place(state: LabState, hint: Hint) -> Path:
    return state.folder / hint.write[0].partition(" ")[0]


def _quickest(state: LabState, hints: Mapping[str, Hint]) -> tuple[OpenFunction, Decimal] | None:
    """The open function with most points per line, among those whose checks need nothing else that is open."""
    best: tuple[Decimal, OpenFunction, Decimal] | None = None
    still = {f"{function.path.name} {function.name}": function for function in state.open}
    for place, function in still.items():
        alone = [
            check.points
            for check in _checks(state.lab)
            if (hint := hints.get(check.id)) is not None
            and [name for name in hint.write if name in still] == [place]
            and _outcome(state, check.id) is not Outcome.PASSED
        ]
        points = sum(alone, Decimal(0))
        if points and function.lines and (best is None or points / function.lines > best[0]):
            best = (points / function.lines, function, points)
    return None if best is None else best[1:]
