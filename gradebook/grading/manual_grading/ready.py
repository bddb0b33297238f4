"""The course's own rubrics for reports, `reports/LAB.toml`, and their copy in the folder of a class.

check = "analysis.report_agrees_with_results"    # of this lab; whose points people give instead
criterion = "analysis"                           # optional: what they may replace as a whole

[[part]]
id = "memory"
title = "Memory"
points = 3                                       # the parts of a lab add up to 10
about = "Which stage decides whether the step fits?"
[[part.level]]
points = 3
text = "Takes the largest peak apart."
[[part.comment]]
points = -1
text = "The peak is not taken apart."
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from gradebook.grading.manual_grading import FOLDER, ManualGradingError, comments, reports
from gradebook.grading.manual_grading.comments import Comment
from gradebook.grading.manual_grading.marks import LOCK
from gradebook.grading.manual_grading.rubric import Level
from gradebook.text_files import lock, quoted, replace_file
from gradebox.common import reading
from gradebox.course.course import Course
from gradebox.course.rubric import Lab

SUBFOLDER = "reports"
"""In the folder of the course."""
POINTS = Decimal(10)
"""What graders give each report; the lab counts it in proportion."""
_BY = "the course"
_HEAD = """\
# Reports that people grade instead of a check, as the course proposes. Change what you like, before you grade.
title = "Reports"
released = false                  # true: students and platforms get the points; without it nobody has a score
blind = false                     # true: the page shows no names
# graders = ["Ana", "Ben"]        # who may grade; left out: anybody
"""


@dataclass(frozen=True)
class Said:
    """A comment that graders reuse, and what it adds to the points."""

    text: str
    points: Decimal = Decimal(0)


@dataclass(frozen=True)
class Part:
    """One criterion of a report."""

    id: str
    title: str
    points: Decimal
    about: str
    level: tuple[Level, ...]
    comment: tuple[Said, ...] = ()


@dataclass(frozen=True)
class LabReport:
    """How people grade the report of one lab."""

    check: str
    """Without the lab."""
    part: tuple[Part, ...]
    criterion: str = ""


def load(course: Course, lab: Lab) -> LabReport:
    """The course's rubric for the report of a lab.

    Raises:
        ManualGradingError: there is none, or it cannot be used.
    """
    path = course.folder / SUBFOLDER / f"{lab.id}.toml"
    if not path.is_file():
        raise ManualGradingError(
            f"reports = true of [by_hand]: the course has no rubric for the report of {lab.id}, {path}"
        )
    try:
        document = reading.toml(path)
        report = reading.into(LabReport, document)
        if sum((part.points for part in report.part), Decimal(0)) != POINTS:
            raise document.error((), f"the points of its parts do not add up to {POINTS}")
        if f"{lab.id}.{report.check}" not in {check.id for row in lab.criteria for check in row.checks}:
            raise document.error(("check",), f"{lab.id} has no check {report.check!r}")
        if report.criterion and not report.check.startswith(f"{report.criterion}."):
            raise document.error(("criterion",), f"{report.check} is no check of {report.criterion!r}")
    except reading.ReadingError as error:
        raise ManualGradingError(str(error)) from None
    return report


def copy_to(folder: Path, course: Course) -> bool:
    """Write the course's rubrics and comments into a class's folder, once: what is there already is the class's own.

    Returns:
        Whether they were written now.

    Raises:
        ManualGradingError: the course lacks a rubric, or one cannot be used.
        OSError: the folder cannot be written to.
    """
    path = folder / FOLDER / reports.FILE
    with lock(folder / FOLDER / LOCK):
        if path.exists():
            return False
        ready = [(lab, load(course, lab)) for lab in course.labs]
        known = comments.load(folder)
        new = [comment for lab, report in ready for comment in _comments(lab, report) if comment.id not in known]
        comments.save(folder, [*known.values(), *new])
        # Last: if it is there, all is there.
        replace_file(path, _HEAD + "".join(text for lab, report in ready for text in _text(lab, report)))
    return True


def _text(lab: Lab, report: LabReport) -> Iterator[str]:
    yield f"\n[[report]]\nlab = {lab.number}\ncheck = {quoted(f'{lab.id}.{report.check}')}\n"
    if report.criterion:
        yield f"criterion = {quoted(f'{lab.id}.{report.criterion}')}\n"
    for part in report.part:
        yield (
            f"\n[[criterion]]\nid = {quoted(id_of(lab, part))}\ntitle = {quoted(f'Lab {lab.number}: {part.title}')}\n"
            f"points = {part.points:f}\nlab = {lab.number}\nabout = {quoted(part.about)}\n"
        )
        for level in part.level:
            yield f"[[criterion.level]]\npoints = {level.points:f}\ntext = {quoted(level.text)}\n"


def _comments(lab: Lab, report: LabReport) -> Iterator[Comment]:
    for part in report.part:
        for number, said in enumerate(part.comment, start=1):
            name = id_of(lab, part)
            yield comments.checked(Comment(f"{name}-{number}", name, said.text, said.points, _BY))


def id_of(lab: Lab, part: Part) -> str:
    """What a part is called in a class: `lab1_memory`."""
    return f"{lab.id}_{part.id}"
