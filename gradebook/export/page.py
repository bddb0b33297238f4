"""The page about a class for its instructor: one self-contained HTML file, no script, readable with 200 students.

Only arranges what `view.py` and `statistics.py` found, for `class.html.jinja`. Everything that comes from submissions
or rosters is escaped there.
"""

from __future__ import annotations

import itertools
import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from gradebook.export import item_chart, overview
from gradebook.export.reviews import ELSEWHERE, HANDING_IN, Item
from gradebook.export.statistics import EVERYBODY, FEWEST, CheckStatistics
from gradebook.export.view import Line, View, share
from gradebook.lateness import deduction
from gradebox.report import html
from gradebox.run.grade import Outcome

_MOST_FAILED = 10
_FEW_BINS, _MANY_BINS = 10, 20
_BINS_FROM = 40
"""So many submissions fill the finer histogram."""
_LEVELS = 6


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar of the histogram, in parts of the drawing (0 to 1)."""

    left: float
    width: float
    height: float
    count: int
    label: str


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Points of several submissions."""

    mean: float
    median: float
    lowest: float
    highest: float
    max_score: float
    count: int


@dataclass(frozen=True, kw_only=True)
class Distribution(Spread):
    """The scores of the class, with penalties and with what people gave where that counts."""

    bars: tuple[Bar, ...]
    checks: Spread | None
    """The points of checks of the same submissions, where people gave some as well."""
    pass_score: float | None
    """None where the scores hold points of people: passing is decided by those of checks."""
    passed: int
    graded: int
    """Submissions of which passing is known; people may not have graded all of them to the end."""

    def place(self, score: float) -> float:
        """The place of a score on the axis, 0 to 1."""
        return score / self.max_score if self.max_score else 0.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One criterion of one student in the heat map."""

    points: Decimal
    level: int
    """0: nothing, up to 5: everything."""
    marks: str
    """✎ an override, ? something open."""
    title: str


@dataclass(frozen=True, kw_only=True)
class ReviewGroup:
    """What is open in one criterion of one student."""

    line: Line
    criterion: str
    items: tuple[Item, ...]
    accept: str | None
    """A command, as are the others; None where it makes no sense."""
    override: str | None
    rerun: str | None


def render(view: View, statistics: Sequence[CheckStatistics], *, command: str, feedback: str | None) -> str:
    """The page's text.

    Args:
        view: the class.
        statistics: of its checks.
        command: how the instructor calls `gpulabs review` for this class.
        feedback: the folder of the students' pages, relative to this page; None for no links.
    """
    template = html.environment(Path(__file__).parent).get_template("class.html.jinja")
    late = [line for line in view.lines if line.result.late is not None]
    by_score = sorted(view.lines, key=lambda line: (-(line.result.score or Decimal(-1)), line.label.casefold()))
    return template.render(
        view=view,
        result=view.result,
        criteria=view.criteria,
        labs=[(lab, len(list(group))) for lab, group in itertools.groupby(view.criteria, _lab)],
        distribution=distribution(view),
        averages={row.id: average(view, row.id) for row in view.criteria},
        rows=[(line, cells(line)) for line in by_score if line.grade is not None],
        checks=statistics,
        flagged=sorted((row for row in statistics if row.flag), key=lambda row: row.flag == EVERYBODY),
        suspicious=sum(row.flag not in ("", EVERYBODY) for row in statistics),
        EVERYBODY=EVERYBODY,
        most_failed=most_failed(statistics),
        reviews=list(review_groups(view, command)),
        late=late,
        decisions=[decision for line in view.lines for decision in overview.decisions(line)],
        deduction=deduction(overview.deducted(late)),
        by_hand=overview.by_hand(view),
        asked=[
            (line, request) for line in view.lines for request in line.result.requests if request.answered_at is None
        ],
        dots=item_chart.dots(statistics),
        undrawn=item_chart.undrawn(statistics),
        weakest=item_chart.weakest(statistics),
        height=item_chart.height,
        names={line.student: line.label for line in view.lines},
        titles={row.id: row.title for row in view.criteria} | {row.check: row.title for row in statistics},
        cut_off=view.remarked,
        without=overview.without_grade(view),
        feedback=feedback,
        fewest=FEWEST,
        level=level,
    )


def _lab(criterion: object) -> str:
    return str(getattr(criterion, "id", "")).partition(".")[0].removeprefix("lab")


def distribution(view: View) -> Distribution | None:
    """The histogram of the graded submissions that have a score; None where nothing is graded.

    As long as nobody has a score, because people have graded none to the end, it is that of the points of checks.
    """
    most, graded = float(view.result.checks_max), [line for line in view.counted if line.checks_score is not None]
    if not graded or not most:
        return None
    by_checks = {line.student: _of_checks(line, most) for line in graded}
    final = {line.student: float(line.result.score) for line in graded if line.result.score is not None}
    with_manual = view.result.manual_released and bool(final)
    shown = _spread(final, float(view.result.max_score)) if with_manual else _spread(by_checks, most)
    first = graded[0].grade
    assert first is not None
    return Distribution(
        **vars(shown),
        bars=_bars(list((final if with_manual else by_checks).values()), shown.max_score),
        checks=_spread({name: by_checks[name] for name in final}, most) if with_manual else None,
        pass_score=None
        if with_manual
        else float(first.pass_score / first.max_score) * most
        if first.max_score
        else 0.0,
        passed=sum(line.passed for line in graded),
        graded=len(graded),
    )


def _of_checks(line: Line, most: float) -> float:
    """What checks gave; of who is excused from a lab, as a part of what the others can have."""
    assert line.grade is not None
    assert line.checks_score is not None
    return float(line.checks_score) * (most / float(line.grade.max_score) if line.result.excused else 1.0)


def _spread(scores: Mapping[str, float], most: float) -> Spread:
    values = list(scores.values())
    return Spread(
        mean=statistics.fmean(values),
        median=statistics.median(values),
        lowest=min(values),
        highest=max(values),
        max_score=most,
        count=len(values),
    )


def _bars(scores: Sequence[float], most: float) -> tuple[Bar, ...]:
    count = _MANY_BINS if len(scores) >= _BINS_FROM else _FEW_BINS
    width = most / count
    # The last bar holds full marks too.
    counts = [0] * count
    for score in scores:
        counts[min(count - 1, max(0, math.floor(score / width + 1e-9)))] += 1
    tallest = max(counts)
    return tuple(
        Bar(
            left=index / count,
            width=1 / count,
            height=value / tallest,
            count=value,
            label=f"{index * width:g} to {(index + 1) * width:g} points: {value}",
        )
        for index, value in enumerate(counts)
    )


def average(view: View, criterion: str) -> float:
    """The share of a criterion's points that the class earned, 0 to 1."""
    shares = [
        share(row.points, row.max_points)
        for line in view.counted
        if line.grade is not None
        for lab in line.grade.labs
        for row in lab.criteria
        if row.id == criterion
    ]
    return statistics.fmean(shares) if shares else 0.0


def level(part: float) -> int:
    """A share as one of six colours; the first and the last only for nothing and everything."""
    if part <= 0:
        return 0
    return _LEVELS - 1 if part >= 1 else 1 + math.floor(part * (_LEVELS - 2))


def cells(line: Line) -> dict[str, Cell]:
    """One student's row of the heat map, by criterion."""
    assert line.grade is not None
    still_open = {item.criterion for item in line.open}
    row = {}
    for lab in line.grade.labs:
        for criterion in lab.criteria:
            if criterion.available:
                marks = "✎" * (criterion.override is not None) + "?" * (criterion.id in still_open)
                passed = sum(check.outcome is Outcome.PASSED for check in criterion.checks)
                count = len(criterion.checks)
                passes = f"{passed} of {count} checks passed" if count else "nothing was graded"
                row[criterion.id] = Cell(
                    points=criterion.points,
                    level=level(share(criterion.points, criterion.max_points)),
                    marks=marks,
                    title=f"{line.label}, {criterion.title}: {passes}",
                )
    return row


def most_failed(rows: Sequence[CheckStatistics]) -> list[CheckStatistics]:
    """The checks that most submissions failed themselves; being blocked by another one does not count."""
    ranked = sorted(rows, key=lambda row: row.failed, reverse=True)
    return [row for row in ranked[:_MOST_FAILED] if row.failed]


def review_groups(view: View, command: str) -> Iterator[ReviewGroup]:
    """What is open, by student and criterion, with the commands that settle it."""
    for line in view.lines:
        student = shlex.quote(line.student)
        by_criterion: dict[str, list[Item]] = {}
        for item in line.open:
            by_criterion.setdefault(item.criterion, []).append(item)
        for criterion, items in by_criterion.items():
            yield ReviewGroup(
                line=line,
                criterion=criterion,
                items=tuple(items),
                accept=f"{command} --accept {student} {criterion}"
                if any(item.can_be_accepted for item in items)
                else None,
                override=None
                if criterion in (ELSEWHERE, HANDING_IN)
                else f"{command} --override {student} {criterion} POINTS 'REASON'",
                rerun=None if criterion == HANDING_IN else f"{command} --rerun {student}",
            )
