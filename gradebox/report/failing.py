"""What fails in a grade, as mistakes: each check that failed by itself, what follows from it, and what waits for it.

Only reads a grade. What is charged is decided in `gradebox/run/deductions.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from gradebox.run.grade import CheckResult, CriterionResult, Grade, LabResult, Outcome


@dataclass(frozen=True)
class Mistake:
    """One check to mend."""

    lab: LabResult
    criterion: CriterionResult
    check: CheckResult
    following: tuple[CheckResult, ...]
    """Failed by the same mistake."""
    waiting: tuple[CheckResult, ...]
    """Not asked because this one has no answer."""

    @property
    def points(self) -> Decimal:
        """What it costs, with all that follows from it and waits for it."""
        every = (self.check, *self.following, *self.waiting)
        return sum((check.max_points - check.points for check in every), Decimal(0))


def is_open(check: CheckResult) -> bool:
    """Whether it failed because its task has not been begun: a stub says so."""
    return check.outcome is Outcome.FAILED and check.message.startswith("Task ")


def mistakes(grade: Grade) -> tuple[Mistake, ...]:
    """In the order of the grade, without open tasks, and without criteria whose points an instructor gave."""
    cause = {check.id: check.follows_from for check in grade.checks if check.follows_from}
    waiting: dict[str, list[CheckResult]] = {}
    following: dict[str, list[CheckResult]] = {}
    for check in grade.checks:
        if check.follows_from:
            following.setdefault(check.follows_from, []).append(check)
        elif check.outcome is Outcome.BLOCKED and check.blocked_by:
            waiting.setdefault(cause.get(check.blocked_by, check.blocked_by), []).append(check)
    return tuple(
        Mistake(lab, criterion, check, tuple(following.get(check.id, ())), tuple(waiting.get(check.id, ())))
        for lab in grade.labs
        for criterion in lab.criteria
        if criterion.override is None
        for check in criterion.checks
        if check.outcome is Outcome.FAILED and not check.follows_from and not is_open(check)
    )
