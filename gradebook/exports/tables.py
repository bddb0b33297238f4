"""Plain tables: a line for each student, and a line for each check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradebook.exports.cells import to_csv
from gradebook.exports.statistics import CheckStatistics
from gradebook.exports.view import Line, View
from gradebox.report.document import points

_FIRST = ("student", "name", "status", "score", "max_score", "passed", "before_penalty", "late_points", "late_rule")
_LAST = ("submitted_at", "commit", "open_reviews", "overrides", "submission_sha256", "reason", "team", "teammates")


def grades(view: View) -> str:
    """The class as CSV: who, what came out, and the points of every criterion.

    Columns of criteria bear the rubric's names (`lab1.benchmark`). An empty score means that there is none yet.
    """
    criteria = [criterion.id for criterion in view.criteria]
    header = [*_FIRST, *criteria, *_LAST]
    return to_csv(header, (list(_student(line, view, criteria)) for line in view.lines))


def _student(line: Line, view: View, criteria: Sequence[str]) -> Iterator[str]:
    result, grade = line.result, line.grade
    late = result.late
    yield from (result.student, result.name, result.status)
    yield "" if result.score is None else points(result.score)
    yield points(view.result.max_score)
    yield "" if result.score is None else ("yes" if line.passed else "no")
    yield "" if grade is None else points(grade.score)
    yield from ("0", "") if late is None else (points(late.points), late.rule)
    rows = {} if grade is None else {row.id: row for lab in grade.labs for row in lab.criteria}
    yield from (points(rows[name].points) if name in rows else "" for name in criteria)
    yield "" if result.submitted_at is None else result.submitted_at.isoformat(timespec="seconds")
    yield result.commit or ""
    yield str(len(line.open))
    yield " ".join(row.id for row in rows.values() if row.override is not None)
    yield "" if grade is None else grade.submission_sha256
    yield result.reason
    yield result.team
    yield " ".join(result.teammates)


def checks(statistics: Sequence[CheckStatistics]) -> str:
    """How every check behaved, as CSV; an empty number means that it is not defined for this class."""
    header = (
        *("check", "title", "criterion", "points", "submissions", "passed", "failed", "blocked", "needs_review"),
        *("share_passed", "item_rest_correlation", "upper_lower_27_percent", "flag", "most_frequent_message"),
    )
    return to_csv(header, map(_check, statistics))


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
