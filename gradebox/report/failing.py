"""What to fix in a submission: each mistake once, with all that it costs, and the tasks that are still open.

Only reads a grade. What is charged is decided in `gradebox/run/deductions.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from gradebox.course.hints import POINTER, Hint
from gradebox.run.grade import CheckResult, CriterionResult, Grade, LabResult, Outcome

_OPEN = re.compile(r"Task \S+")
_RAISED = re.compile(r" at (\w+\.py):\d+ in (\w+)")
"""Where code of the submission was when it raised an error, in the message of a check."""
_NO_HINTS: Mapping[str, Hint] = {}


@dataclass(frozen=True)
class Mistake:
    """One mistake to fix, at the check that is charged for it."""

    lab: LabResult
    criterion: CriterionResult
    check: CheckResult
    following: tuple[CheckResult, ...] = ()
    """Failed by the same mistake."""
    waiting: tuple[CheckResult, ...] = ()
    """Not run because this one has no answer."""
    place: str = ""
    """File and function to look at: "amp_training.py, train_with_amp"; empty if the course does not say it."""

    @property
    def title(self) -> str:
        """The mistake if it was recognised, or how and where the code ended, or the requirement that is not met."""
        ended = self.check.evidence if self.check.evidence != self.check.message else ""
        return self.check.mistake or ended or self.check.name

    @property
    def points(self) -> Decimal:
        """What it costs, with all that follows from it and waits for it."""
        every = (self.check, *self.following, *self.waiting)
        return sum((check.max_points - check.points for check in every), Decimal(0))

    @property
    def count(self) -> int:
        """The failed checks that show it."""
        return 1 + len(self.following)

    @property
    def hint(self) -> str:
        """What to do: the most specific hint of the checks that show it, which need not be the one that is charged."""
        given = [check.hint for check in (self.check, *self.following) if check.hint]
        return next((hint for hint in given if not hint.startswith(POINTER)), given[0] if given else "")


@dataclass(frozen=True)
class OpenTasks:
    """The tasks of a lab that are not begun."""

    lab: LabResult
    first: CheckResult
    """Of the task to begin with: its message says what to write."""
    count: int
    points: Decimal
    """What their checks are worth, with those that wait for them."""

    @property
    def begin(self) -> str:
        """What to do, as one sentence without a full stop."""
        task, _, what = self.first.message.partition(" is open: ")
        return f"Begin with {task[0].lower()}{task[1:]}" + (f": {what}" if what else "")


def is_open(check: CheckResult) -> bool:
    """Whether it failed because its task has not been begun: a stub says so."""
    return check.outcome is Outcome.FAILED and check.message.startswith("Task ")


def mistakes(grade: Grade, hints: Mapping[str, Hint] = _NO_HINTS) -> tuple[Mistake, ...]:
    """Those that cost most first, without open tasks, and without criteria whose points an instructor gave.

    Args:
        grade: the grade.
        hints: of the course, by check: they know the functions that a check runs.
    """
    charged = {check.id: check.follows_from for check in grade.checks if check.follows_from}
    waiting: dict[str, list[CheckResult]] = {}
    following: dict[str, list[CheckResult]] = {}
    for check in grade.checks:
        if check.outcome is Outcome.BLOCKED and check.blocked_by:
            waiting.setdefault(charged.get(check.blocked_by, check.blocked_by), []).append(check)
        elif check.follows_from:
            following.setdefault(check.follows_from, []).append(check)
    listed = [
        Mistake(
            lab,
            criterion,
            check,
            tuple(following.get(check.id, ())),
            tuple(waiting.get(check.id, ())),
            _place(check, hints),
        )
        for lab in grade.labs
        for criterion in lab.criteria
        if criterion.override is None
        for check in criterion.checks
        if check.outcome is Outcome.FAILED and not check.follows_from and not is_open(check)
    ]
    return tuple(sorted(listed, key=lambda mistake: -mistake.points))


def _place(check: CheckResult, hints: Mapping[str, Hint]) -> str:
    """The function that a check reports about: where the code raised, or the one that the message names, or else the
    first that the check runs."""
    own = hints[check.id].write if check.id in hints else ()
    if not check.answered and (raised := _RAISED.search(check.message)):
        return f"{raised[1]}, {raised[2]}"
    lab = check.id.partition(".")[0]
    others = [place for name, hint in hints.items() if name.partition(".")[0] == lab for place in hint.write]
    for text, places in ((check.message, own), (check.message, others), (check.mistake + check.hint, own)):
        if named := [(text.find(name), place) for place in places if (name := _named(place, text))]:
            return ", ".join(min(named)[1].split())
    return ", ".join(own[0].split()) if own else ""


def _named(place: str, text: str) -> str:
    """How a text names the function of a place; empty if it does not.

    Many functions are called like words (`train`, `close`): these count as a call, `train()`, or with their class.
    """
    function = place.partition(" ")[2]
    short = function.rpartition(".")[2]
    forms = [f"{short}()", f"`{short}`", *([function] if "." in function else [])]
    forms += [short] if "_" in short.strip("_") else []
    return next((form for form in forms if re.search(rf"(?<![\w.]){re.escape(form)}(?!\w)", text)), "")


def open_tasks(grade: Grade) -> tuple[OpenTasks, ...]:
    """By lab, the task to begin with, and how many are open."""
    listed = []
    for lab in grade.labs:
        checks = [check for criterion in lab.criteria if criterion.override is None for check in criterion.checks]
        not_begun = {check.id: check for check in checks if is_open(check)}
        if not not_begun:
            continue
        tasks = {match[0]: check for check in reversed(not_begun.values()) if (match := _OPEN.match(check.message))}
        lost = sum(
            (check.max_points - check.points for check in checks if {check.id, check.blocked_by} & set(not_begun)),
            Decimal(0),
        )
        listed.append(OpenTasks(lab, tasks[min(tasks)], len(tasks), lost))
    return tuple(listed)
