"""How each check behaved in a class: does it separate strong from weak submissions, or is the check itself the problem?

Classical item analysis over the submissions that were graded. A check is an item, passed (1) or not (0); what was
blocked or needs review was not passed. Overrides and penalties for handing in late do not count: these numbers are
about checks, not about students.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from gradebook.export.view import View
from gradebox.run.grade import PASSED_IN_DOUBT, CheckResult, Outcome

GROUP_SHARE = 0.27
"""Upper and lower group of the discrimination index; Kelley, "The selection of upper and lower groups", 1939."""
FEWEST = 10
"""Below that many submissions no discrimination is stated: one student would decide it."""
EVERYBODY = "everybody passes"
"""The flag that may well be in order."""
_REVIEW_SHARE = 0.1
_EXAMPLES = 3

_CHANGING = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A message of a failed check, and how many saw it, numbers aside."""

    message: str
    count: int
    student: str
    """One of them."""


@dataclass(frozen=True, kw_only=True)
class CheckStatistics:
    """One check over the class."""

    check: str
    title: str
    """What people call it."""
    criterion: str
    points: Decimal
    submissions: int
    passed: int
    failed: int
    blocked: int
    needs_review: int
    item_rest: float | None
    """Corrected point-biserial correlation: of passing with the points of all other checks. None: not defined."""
    upper_lower: float | None
    """Share that passed of the best 27 % less that of the weakest 27 %, ranked by the points of all other checks."""
    flag: str
    """What looks wrong with the check; empty when nothing does."""
    advice: str
    examples: tuple[Example, ...]
    """The most frequent messages of those who failed."""

    @property
    def share_passed(self) -> float:
        return self.passed / self.submissions


def of(view: View) -> tuple[CheckStatistics, ...]:
    """The statistics of every check that counts, in the rubric's order; empty before the first grade."""
    table: dict[str, dict[str, CheckResult]] = {}
    totals: dict[str, float] = {}
    for line in view.counted:
        if line.grade is None or line.result.excused:  # whose points are those of fewer checks
            continue
        checks = [check for lab in line.grade.labs for criterion in lab.criteria for check in criterion.checks]
        totals[line.student] = float(sum((check.points for check in checks), Decimal(0)))
        for check in checks:
            table.setdefault(check.id, {})[line.student] = check
    return tuple(_check(check_id, results, totals) for check_id, results in table.items())


def _check(check_id: str, results: dict[str, CheckResult], totals: dict[str, float]) -> CheckStatistics:
    outcomes = Counter(check.outcome for check in results.values())
    passed = [float(check.outcome is Outcome.PASSED) for check in results.values()]
    rest = [totals[student] - float(check.points) for student, check in results.items()]
    correlation = item_rest_correlation(passed, rest)
    first = next(iter(results.values()))
    undecided = [check for check in results.values() if check.outcome is Outcome.NEEDS_REVIEW]
    left_open = sum(check.message != PASSED_IN_DOUBT for check in undecided)
    flag, advice = _judged(outcomes, left_open, correlation, len(results))
    return CheckStatistics(
        check=check_id,
        title=first.name,
        criterion=check_id.rpartition(".")[0],
        points=first.max_points,
        submissions=len(results),
        passed=outcomes[Outcome.PASSED],
        failed=outcomes[Outcome.FAILED],
        blocked=outcomes[Outcome.BLOCKED],
        needs_review=outcomes[Outcome.NEEDS_REVIEW],
        item_rest=correlation,
        upper_lower=upper_lower_index(passed, rest),
        flag=flag,
        advice=advice,
        examples=_examples(results),
    )


def item_rest_correlation(passed: Sequence[float], rest: Sequence[float]) -> float | None:
    """Pearson's correlation of passing (0 or 1) with the points of the other checks.

    Returns:
        -1 to 1; None for fewer than ten submissions, or where one of the two does not vary.
    """
    count = len(passed)
    if count < FEWEST:
        return None
    mean_passed, mean_rest = math.fsum(passed) / count, math.fsum(rest) / count
    varies_passed = math.fsum((value - mean_passed) ** 2 for value in passed)
    varies_rest = math.fsum((value - mean_rest) ** 2 for value in rest)
    if varies_passed <= 1e-12 or varies_rest <= 1e-12:
        return None
    together = math.fsum((a - mean_passed) * (b - mean_rest) for a, b in zip(passed, rest, strict=True))
    return max(-1.0, min(1.0, together / math.sqrt(varies_passed * varies_rest)))


def upper_lower_index(passed: Sequence[float], rest: Sequence[float]) -> float | None:
    """Share that passed in the upper 27 % less that in the lower 27 %.

    Submissions with equal points at the edge of a group enter it with a part of their weight each, so that the order
    in which they are listed does not matter.

    Returns:
        -1 to 1; None for fewer than ten submissions, or where all have the same points.
    """
    count = len(passed)
    if count < FEWEST or min(rest) == max(rest):
        return None
    size = max(1.0, round(GROUP_SHARE * count))
    return _group_share(passed, rest, size, best=True) - _group_share(passed, rest, size, best=False)


def _group_share(passed: Sequence[float], rest: Sequence[float], size: float, *, best: bool) -> float:
    left, sum_passed = size, 0.0
    for points in sorted(set(rest), reverse=best):
        tied = [value for value, other in zip(passed, rest, strict=True) if other == points]
        taken = min(left, len(tied))
        sum_passed += taken * math.fsum(tied) / len(tied)
        left -= taken
        if left <= 0:
            break
    return sum_passed / size


def _judged(outcomes: Counter[Outcome], undecided: int, correlation: float | None, count: int) -> tuple[str, str]:
    """What looks wrong with a check, and what to do about it; `undecided` are those that the check left open."""
    if undecided >= max(2.0, _REVIEW_SHARE * count):
        return (
            "often undecided",
            "Read the messages below: most probably the check or the machine is at fault, not the work.",
        )
    if count < FEWEST:
        return "", ""
    if outcomes[Outcome.PASSED] == 0:
        return (
            "nobody passes",
            "Grade the reference solution with this device and seed. If it passes, the task or its docstring asks for "
            "something that nobody understood: say it in class, or give the points by overrides.",
        )
    if outcomes[Outcome.PASSED] == count:
        return EVERYBODY, "It does not separate submissions. That is fine for a first step; otherwise ask for more."
    # Independent of the rest, a correlation falls below -1/sqrt(n - 1) by chance in one check of six.
    if correlation is not None and correlation < -1 / math.sqrt(count - 1):
        return (
            "negative discrimination",
            "Weaker submissions pass it more often than stronger ones. Read a strong submission that fails: "
            "does the check refuse a correct way of doing it, or do stubs pass by accident?",
        )
    return "", ""


def _examples(results: dict[str, CheckResult]) -> tuple[Example, ...]:
    """Messages that differ in numbers only are one; the first in the class's order stands for them."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for student, check in results.items():
        if check.outcome in (Outcome.FAILED, Outcome.NEEDS_REVIEW) and check.message:
            groups.setdefault(_CHANGING.sub("#", check.message), []).append((check.message, student))
    ranked = sorted(groups.values(), key=len, reverse=True)[:_EXAMPLES]
    return tuple(Example(message=group[0][0], count=len(group), student=group[0][1]) for group in ranked)
