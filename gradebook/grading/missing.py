"""Who has a zero, and who has no score yet because their work may be elsewhere: among what is nobody's, for example.

Not for grades (`class_summary.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from gradebook.intake import doubtful_rows
from gradebook.results import Student, StudentResult
from gradebook.settings import Settings
from gradebook.spelt_names import have_a_word_in_common, may_be_of
from gradebook.text_files import some

_NAMED = 5
"""So many strangers are named where all of them would be too many."""


def strangers(students: Sequence[Student], former: Collection[str]) -> tuple[str, ...]:
    """Those who handed in and match nobody in the roster, where there is one; and that an earlier one had them."""
    here = [student.student for student in students if not student.columns]
    if len(here) == len(students):
        return ()
    return tuple(f"{student} (of a former roster)" if student in former else student for student in here)


def waiting(line: StudentResult, outside: Sequence[str], before: Sequence[str]) -> StudentResult:
    """The line; without its zero, if work that is missing may have points.

    Args:
        line: somebody's, with all points of theirs.
        outside: what was handed in and matches nobody.
        before: the names under which something was handed in before that is nobody's.
    """
    if line.score != 0 or (line.overrides and not line.partly):
        return line
    if line.partly:
        return replace(line, score=None, checks_score=None, withheld=True)
    theirs = _may_be_theirs(line, [name for name in outside if _may_be_called(line, name)])
    earlier = [name for name in before if _may_be_called(line, name)]
    if not theirs and earlier:
        theirs = (
            f"earlier work of {some([repr(name) for name in earlier])} counts for nobody, and may be theirs: put it "
            "into a folder that has the student's key"
        )
    if not theirs:
        return line
    first = line.reason or ("nothing was handed in under this name" if line.status == "missing" else "0 points so far")
    return replace(line, score=None, checks_score=None, withheld=True, reason=f"{first}; {theirs}")


def _may_be_called(line: StudentResult, name: str) -> bool:
    known = (line.name, *line.columns.values())
    return bool(line.columns) and (name in known or may_be_of(name, line.name, line.student))


def result_of(student: Student, outside: Sequence[str], settings: Settings, now: datetime) -> StudentResult:
    """Somebody of the roster without a submission: a zero, unless somebody else's may be theirs or they have time."""
    result = StudentResult(
        student=student.student,
        name=student.name,
        columns=student.columns,
        status="missing",
        team=student.team,
        score=Decimal(0),
    )
    until = settings.in_time_until(student.student)
    if student.student in settings.extensions and until is not None and until > now:
        reason = f"nothing was handed in so far, and the extension until {settings.local(until):%Y-%m-%d %H:%M %Z} runs"
        return replace(result, score=None, withheld=True, reason=reason)
    if student.submitted_at is not None:
        elsewhere = f": {_may_be_theirs(student, outside)}" if outside else ""
        # Without the time, which the result has: so many students may have one line.
        reason = f"the roster or a table has a time of submission, and the work is not in these submissions{elsewhere}"
        return replace(result, score=None, withheld=True, reason=reason, submitted_at=student.submitted_at)
    if doubtful_rows.may_be_test_student(student.name, student.columns):
        return replace(result, score=None, withheld=True, reason="it may be the Test Student of Canvas: remove the row")
    if student.reason:
        return replace(result, score=None, withheld=True, reason=student.reason)
    if not outside:
        return result
    reason = f"nothing was handed in under this name, but {_may_be_theirs(student, outside)}"
    return replace(result, score=None, withheld=True, reason=reason)


def _may_be_theirs(student: Student | StudentResult, outside: Sequence[str]) -> str:
    """Whose work may be this student's: the names that are most alike come first."""
    if not outside:
        return ""
    ordered = sorted(outside, key=lambda name: not (student.name and have_a_word_in_common(name, student.name)))
    what = "matches nobody in the roster: it" if len(outside) == 1 else "match nobody in the roster: one of them"
    return f"{some(ordered, most=_NAMED)} {what} may be theirs"
