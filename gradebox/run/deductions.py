"""One mistake, one charge: which failing checks of a lab show the same mistake, so that only one of them costs points.

Two checks show the same mistake only if that was shown, in one of four ways:

- both recognised the same cause: a reference run *with* that mistake comes to what each of them observed
  (`gradebox.run.assertions.Cause`);
- the student's code raised the same exception at the same line, or ended or waited there;
- they report the same observation, word for word;
- one of them *follows* from the other: a control experiment passed, in which the check was run again without what the
  other one is about (`gradebox.course.criterion.builds_on`), or it was not run, because the code that it needs ended
  without an answer in the other one (`requires`).

That two checks are in one criterion, or run the same function, shows nothing: both are charged.

Of the checks that show one mistake, one is charged: the one that the cause belongs to, or else the one that is worth
most. The others follow from it and keep their points, up to a limit. Without a limit, a submission in which one
mistake fails everything would keep nearly every point although nothing works, and `raise` would be worth more than an
open task.

- In each criterion, what is kept is at most what its passed checks are worth.
- If the student's code did not come to an end, nothing was seen of what it computes. Then what is kept is also at most
  what passed checks of the same functions are worth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Failure:
    """What a check that did not pass shows of its mistake."""

    mistake: str
    """The same in all checks that show the same mistake; empty if it shows none, as an open task does."""
    belongs_to: str = ""
    """The check in which this mistake is charged if that one failed as well."""
    answered: bool = True
    """Whether the student's code came to an end, so that what it gave was judged."""
    follows: str = ""
    """The failed check that this one was shown to follow from; its mistake counts instead of `mistake`."""


def deduplicate(
    points: Mapping[str, Decimal],
    passed: Collection[str],
    failures: Mapping[str, Failure],
    functions: Mapping[str, Collection[str]] | None = None,
) -> tuple[dict[str, str], frozenset[str]]:
    """What follows from what, in one lab.

    Args:
        points: of all checks of the lab, in the rubric's order.
        passed: the checks that passed.
        failures: what those that failed, or waited for one that failed, show.
        functions: by check, the functions of the submission that it runs.

    Returns:
        By check, the one that it follows from; and which of them are not charged.
    """
    mistakes = {check: mistake for check in failures if (mistake := _mistake_of(check, failures))}
    order = {check: position for position, check in enumerate(points)}
    charged: dict[str, str] = {}
    # A check that was shown to follow from another one cannot be the one that names the mistake.
    for check in sorted(
        mistakes,
        key=lambda name: (bool(failures[name].follows), failures[name].belongs_to != name, -points[name], order[name]),
    ):
        charged.setdefault(mistakes[check], check)
    follows = {check: charged[mistakes[check]] for check in points if check in mistakes}
    follows = {check: other for check, other in follows.items() if other != check}
    # In the rubric's order, so that the same failures always keep the same points.
    kept: set[str] = set()
    budget = _Budget(points, passed, functions or {})
    for check in follows:
        if budget.pays_for(check, answered=failures[check].answered):
            kept.add(check)
    return follows, frozenset(kept)


def _mistake_of(check: str, failures: Mapping[str, Failure]) -> str:
    """The mistake that a check shows: its own, or that of the check which it follows from."""
    visited = set()
    while (follows := failures[check].follows) in failures and check not in visited:
        visited.add(check)
        check = follows
    return failures[check].mistake


class _Budget:
    """The points that checks may keep: as many as others have earned."""

    def __init__(
        self, points: Mapping[str, Decimal], passed: Collection[str], functions: Mapping[str, Collection[str]]
    ) -> None:
        self._points = points
        self._passed = [check for check in points if check in passed]
        self._functions = functions
        self._kept: list[str] = []

    def pays_for(self, check: str, *, answered: bool) -> bool:
        """Whether a check keeps its points; if so, they are no longer there for others."""
        criterion = check.rpartition(".")[0]
        paid = self._fits(check, lambda other: other.rpartition(".")[0] == criterion)
        if not answered:
            own = set(self._functions.get(check, ()))
            paid = paid and self._fits(check, lambda other: not own.isdisjoint(self._functions.get(other, ())))
        if paid:
            self._kept.append(check)
        return paid

    def _fits(self, check: str, counts: Callable[[str], bool]) -> bool:
        earned = sum((self._points[other] for other in self._passed if counts(other)), Decimal(0))
        kept = sum((self._points[other] for other in self._kept if counts(other)), Decimal(0))
        return kept + self._points[check] <= earned
