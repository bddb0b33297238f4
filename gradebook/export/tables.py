"""Plain tables: a line for each student, and a line for each check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradebook.export import overview
from gradebook.export.statistics import CheckStatistics
from gradebook.export.view import Line, View
from gradebook.text_files import to_csv
from gradebox.report.document import points

_FIRST = ("student", "name", "status", "score", "max_score", "passed", "before_penalty", "late_points", "late_rule")
_LAST = (
    *("submitted_at", "deadline", "commit", "open_reviews", "overrides", "submission_sha256", "reason", "team"),
    "teammates",
)
_HANDS = ("checks_score", "by_hand", "by_hand_max", "by_hand_open", "by_hand_graders", "excused", "open_requests")
_DECIDED_BY = "decided_by"


def grades(view: View) -> str:
    """The class as CSV: who, what came out, and the points of every criterion.

    Columns of criteria bear the rubric's names (`lab1.benchmark`). An empty score means that there is none yet.
    """
    criteria = [criterion.id for criterion in view.criteria]
    header = [*_FIRST, *criteria, *_LAST, *_HANDS]
    lines = [line.as_exported() for line in view.lines]
    decided_by = [overview.decided_by(line) for line in view.lines]
    rows = [[*_student(line, view, criteria), *_by_hand(line)] for line in lines]
    ids = [criterion.id for line in view.lines for criterion in line.result.by_hand]
    if names := [f"manual.{name}" for name in dict.fromkeys(ids)]:
        header += names
        rows = [[*row, *_criteria_by_hand(line, names)] for row, line in zip(rows, lines, strict=True)]
    return to_csv([*header, _DECIDED_BY], [[*row, who] for row, who in zip(rows, decided_by, strict=True)])


def _student(line: Line, view: View, criteria: Sequence[str]) -> Iterator[str]:
    result, grade = line.result, line.grade
    late = result.late
    yield from (result.student, result.name, "held_back" if line.is_held_back else result.status)
    yield "" if result.score is None else points(result.score)
    yield points(view.result.max_score)
    decided_by_checks = result.score is not None and view.result.checks_max and not line.by_hand_alone
    yield ("yes" if line.passed else "no") if decided_by_checks else ""
    yield "" if grade is None else points(grade.score)
    yield from ("0", "") if late is None else (points(late.points), late.rule)
    rows = {} if grade is None else {row.id: row for lab in grade.labs for row in lab.criteria}
    yield from (points(rows[name].points) if name in rows else "" for name in criteria)
    yield "" if result.submitted_at is None else result.submitted_at.isoformat(timespec="seconds")
    yield "" if result.deadline is None else result.deadline.isoformat(timespec="seconds")
    yield result.commit or ""
    yield str(len(line.open))
    yield " ".join(row.id for row in rows.values() if row.override is not None)
    yield "" if grade is None else grade.submission_sha256
    yield result.reason
    yield result.team
    yield " ".join(result.teammates)


def _by_hand(line: Line) -> Iterator[str]:
    manual, score, criteria = line.result.manual, line.checks_score, line.result.by_hand
    yield "" if score is None else points(score)
    yield from ("", "") if manual is None else (points(manual.points), points(manual.max_points))
    yield str(sum(criterion.points is None for criterion in criteria)) if criteria or manual is not None else ""
    yield ", ".join(dict.fromkeys(criterion.by for criterion in criteria if criterion.by))
    yield "; ".join(
        f"{'all' if excuse.lab is None else f'lab{excuse.lab}'}: {excuse.reason}" for excuse in line.result.excused
    )
    yield str(sum(request.answered_at is None for request in line.result.requests))


def _criteria_by_hand(line: Line, names: Sequence[str]) -> Iterator[str]:
    scores = {f"manual.{criterion.id}": criterion.points for criterion in line.result.by_hand}
    for name in names:
        value = scores.get(name)
        yield "" if value is None else points(value)


def checks(statistics: Sequence[CheckStatistics]) -> str:
    """How every check behaved, as CSV; an empty number means that it is not defined for this class."""
    header = (
        *("check", "title", "criterion", "points", "submissions", "passed", "failed", "blocked", "needs_review"),
        *("share_passed", "item_rest_correlation", "upper_lower_27_percent", "flag", "most_frequent_message"),
    )
    return to_csv(header, map(_check, statistics))


def results(view: View) -> str:
    """What each check found of each student who has a grade, as CSV."""
    header = ("student", "name", "check", "title", "outcome", "points", "max_points", "message")
    rows = [
        (
            *(line.student, line.result.name, check.id, check.name, check.outcome.value),
            *(points(check.points), points(check.max_points), check.message),
        )
        for line in map(Line.as_exported, view.lines)
        if line.grade is not None
        for check in line.grade.checks
    ]
    return to_csv(header, rows)


def _check(row: CheckStatistics) -> list[str]:
    counts = (row.submissions, row.passed, row.failed, row.blocked, row.needs_review)
    return [
        *(row.check, row.title, row.criterion, points(row.points)),
        *map(str, counts),
        *(f"{row.share_passed:.3f}", _number(row.item_rest), _number(row.upper_lower)),
        row.flag,
        row.examples[0].message if row.examples else "",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
