"""What Moodle's grading worksheet says of a student's submission, compared with the class: extensions, and drafts.

Its column of the status has parts with ` - ` between them, such as "Submitted for grading - Extension granted until:
Sunday, 8 March 2026, 11:59 PM". An extension is the part with a moment behind a colon, in any language. Not for what
goes back to Moodle (`export/moodle.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from gradebook import moodle_words
from gradebook.intake import moments
from gradebook.results import Student
from gradebook.roster import KEYS, NAME_COLUMNS, folded
from gradebook.settings import Settings
from gradebook.text_files import some, with_name

_OTHERS = frozenset((*KEYS, "Feedback comments", "Last modified (submission)", "Last modified (grade)"))
_COLON = re.compile("[:\uff1a] ")


def notices(settings: Settings, students: Sequence[Student]) -> tuple[str, ...]:
    """What an instructor should know before a penalty meets somebody, or a draft is graded."""
    return tuple(filter(None, (_extensions(settings, students), _drafts(students))))


def _extensions(settings: Settings, students: Sequence[Student]) -> str:
    unknown = []
    for student in students:
        until = settings.in_time_until(student.student)
        granted = max(_granted(student, settings), default=None)
        if until is not None and granted is not None and granted > until:
            unknown.append(f"{with_name(student.student, student.name)} ({settings.local(granted):%Y-%m-%d %H:%M})")
    if not unknown or not settings.late.deducts:
        return ""
    return (
        f"Moodle's worksheet grants extensions that class.toml does not have: {some(unknown)}. Write them into "
        "[extensions], or the penalty for lateness meets these students"
    )


def _granted(student: Student, settings: Settings) -> Iterator[datetime]:
    for part in _parts(student):
        for colon in _COLON.finditer(part):
            if (moment := moments.parse(part[colon.end() :], settings.zone)) is not None:
                yield moment


def _drafts(students: Sequence[Student]) -> str:
    drafts = [
        with_name(student.student, student.name)
        for student in students
        if student.content is not None and any(folded(part) in moodle_words.DRAFTS for part in _parts(student))
    ]
    if not drafts:
        return ""
    return (
        f"drafts in Moodle, which these students have not handed in yet, and which are graded: {some(drafts)}. If a "
        "draft should not count, ask the students to hand in, or remove it from the download"
    )


def _parts(student: Student) -> Iterator[str]:
    """The parts of what may be the status: Moodle calls the column otherwise in each language."""
    if "Identifier" not in student.columns:
        return
    for title, cell in student.columns.items():
        if title not in _OTHERS and folded(title) not in NAME_COLUMNS and not title.startswith("("):
            yield from (part.strip() for part in cell.split(" - "))
