"""The top of the page about a class: who has no grade and why, what lateness cost, and what people did.

Only data for `class.html.jinja`; not for scores.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gradebook.export.view import Line, View
from gradebox.report.document import points

_WORDS = {
    "could_not_grade": "could not be graded: grade the class again with --regrade",
    "could_not_fetch": "could not be fetched: no score until a run can",
    "no_repository": "no repository: no score until the list is fixed, or 0 is accepted",
    "undecided": "refused until somebody decides which work counts: the 0 is withheld",
    "refused": "refused: 0 points until they hand in again, in no average",
    "withheld": "handed in nothing under their name: the 0 is withheld",
    "incomplete": "work may be missing: no score until somebody decides",
    "missing": "handed in nothing: 0 points, in no average",
    "waiting": "not graded yet: the run was stopped",
    "by_hand": "not graded by hand to the end: no score until they are",
    "not_released": "reports graded by hand, and not released: no score until they are",
    "excused": "excused: in no average",
}
"""Why there is no grade, most urgent first."""
_SAY_ALL = ("missing", "by_hand", "not_released")
"""Words that need no reason next to them."""
_NUMBERS = re.compile(r"\b[0-9a-f]{7,40}\b|\d+")


@dataclass(frozen=True)
class Group:
    """Students who have no grade for one reason."""

    words: str
    reason: str
    """That of the first of them; empty where the words say all."""
    lines: tuple[Line, ...]

    @property
    def count(self) -> int:
        return len(self.lines)

    @property
    def varies(self) -> bool:
        """Whether the others' reason differs in names or numbers."""
        return len({line.result.reason for line in self.lines}) > 1


@dataclass(frozen=True)
class ByHand:
    """How far people are, and what they gave."""

    title: str
    released: bool
    count: int
    """Submissions that there are to read; one of a team is one."""
    complete: int
    anew: int
    criteria: tuple[tuple[str, Decimal, int, float | None], ...]
    """Title, points, how many are graded, and the mean share of the points."""
    graders: tuple[tuple[str, int], ...]
    beside: bool = True
    """Whether people give points in addition to those of checks, and not only for reports."""
    beside_released: bool = False


def without_grade(view: View) -> tuple[Group, ...]:
    """Everybody without a grade, by reason; reasons that differ in names and numbers only are one."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in view.lines:
        if (kind := _kind(line)) is not None:
            groups.setdefault((kind, alike(line)), []).append(line)
    order = list(_WORDS)
    ranked = sorted(groups.items(), key=lambda item: (order.index(item[0][0]), -len(item[1])))
    return tuple(
        Group(_WORDS[kind], "" if kind in _SAY_ALL else lines[0].result.reason, tuple(lines))
        for (kind, _), lines in ranked
    )


@dataclass(frozen=True)
class Decision:
    """What somebody decided about a student."""

    line: Line
    what: str
    reason: str
    by: str
    at: datetime | None

    @property
    def who_and_when(self) -> str:
        """Empty if neither is known."""
        return " ".join(filter(None, (self.by, f"{self.at:%Y-%m-%d %H:%M %Z}".strip() if self.at else "")))


def decisions(line: Line) -> Iterator[Decision]:
    """Everything that people decided about one student, but for marks."""
    result = line.result
    if (held := result.held_back) is not None:
        yield Decision(line, "held back", held.reason, held.by, held.at)
    for excuse in result.excused:
        what = "excused" if excuse.lab is None else f"excused from lab{excuse.lab}"
        yield Decision(line, what, excuse.reason, excuse.by, excuse.at)
    for override in result.overrides:
        what = f"{override.criterion}: {points(override.points)}"
        yield Decision(line, what, override.reason, override.by, override.at)
    for entry in line.accepted:
        yield Decision(line, f"{entry.criterion}: accepted", "", entry.accepted_by, entry.accepted_at)


def decided_by(line: Line) -> str:
    """Who decided what and when, marks as well, in one cell of a table."""
    texts = [f"{decision.what.partition(': ')[0]}: {decision.who_and_when}" for decision in decisions(line)]
    texts += [
        f"manual.{criterion.id}: {criterion.by}{f' {criterion.at:%Y-%m-%d %H:%M %Z}' if criterion.at else ''}"
        for criterion in line.result.by_hand
        if criterion.by
    ]
    return "; ".join(text for text in texts if not text.endswith(": "))


def deducted(lines: Iterable[Line]) -> Decimal:
    """The points that lateness cost all of them together."""
    return sum((line.result.late.points for line in lines if line.result.late), Decimal(0))


def by_hand(view: View) -> ByHand | None:
    """The work of people; None where there is none to do."""
    of = view.result
    if not (of.manual_max or of.reports_title):
        return None
    results = [line.result for line in view.to_read]
    rows: dict[str, tuple[str, Decimal, list[float]]] = {}
    for result in results:
        for criterion in result.by_hand:
            _, _, shares = rows.setdefault(criterion.id, (criterion.title, criterion.max_points, []))
            if criterion.points is not None:
                shares.append(float(criterion.points / criterion.max_points))
    graders = Counter(criterion.by for result in results for criterion in result.by_hand if criterion.by)
    titles = [title for title in (of.manual_title, of.reports_title) if title]
    return ByHand(
        title=", ".join(dict.fromkeys(titles)),
        released=(of.manual_released or not of.manual_max) and (of.reports_released or not of.reports_title),
        count=len(results),
        complete=sum(result.graded_by_hand for result in results),
        anew=sum(result.graded_anew for result in results),
        criteria=tuple(
            (title, most, len(shares), statistics.fmean(shares) if shares else None)
            for title, most, shares in rows.values()
        ),
        graders=tuple(sorted(graders.items())),
        beside=bool(of.manual_max),
        beside_released=of.manual_released,
    )


def _kind(line: Line) -> str | None:
    result = line.result
    if line.grade is None:
        if result.score is None and result.status in ("missing", "refused"):
            return "withheld" if result.status == "missing" else "undecided"
        return result.status
    if line.waits:
        return "incomplete"
    if line.by_hand_alone and result.score is None:
        return "by_hand"
    if any(not report.complete for report in result.reports):
        return "by_hand"
    if any(not report.released for report in result.reports):
        return "not_released"
    manual = result.manual
    return "by_hand" if manual is not None and manual.released and not manual.complete else None


def alike(line: Line) -> str:
    """The reason without what is the student's own: their name, commits and numbers."""
    reason = line.result.reason
    for own in sorted({line.student, line.result.name, line.result.team} - {""}, key=len, reverse=True):
        reason = reason.replace(own, "…")
    return _NUMBERS.sub("#", reason)
