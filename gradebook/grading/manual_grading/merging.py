"""What people gave, put next to what checks gave: into each student's line, and into the score where it is released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from gradebook.grading.manual_grading import (
    FOLDER,
    ManualGradingError,
    code_files,
    comments,
    line_comments,
    marks,
    requests,
    rubric,
    units,
)
from gradebook.grading.manual_grading.comments import Comment
from gradebook.grading.manual_grading.marks import Mark
from gradebook.grading.manual_grading.rubric import Criterion, Rubric
from gradebook.intake.collect import STORE, Store
from gradebook.results import ClassResult, LineNote, ManualCriterion, ManualResult, Remark, Student, StudentResult

_CENT = Decimal("0.01")


@dataclass(frozen=True)
class ManualGrading:
    """Everything in the folder `manual_grading` of a class."""

    rubric: Rubric | None
    comments: Mapping[str, Comment]
    marks: Mapping[str, Mapping[str, Mark]]
    """By the submission's key, then by criterion."""

    @classmethod
    def load(cls, folder: Path) -> ManualGrading:
        """Read it. Raises `ManualGradingError` where a file cannot be used, or names what another one does not have."""
        loaded = cls(rubric.load(folder), comments.load(folder), marks.load_all(folder))
        for unit, marks_of_unit in loaded.marks.items():
            for mark in marks_of_unit.values():
                for name in mark.comments:
                    if name not in loaded.comments:
                        raise ManualGradingError(
                            f"the mark of {unit!r} for {mark.criterion} has the comment {name!r}, which is not in "
                            f"{folder / FOLDER / comments.FILE}: put it back there, or take it out of the mark"
                        )
        return loaded


def merged(result: ClassResult, folder: Path, students: Sequence[Student]) -> ClassResult:
    """A class with what people gave; as it was, where they grade nothing and nobody asked to look again.

    Raises:
        ManualGradingError: a file of theirs cannot be used.
    """
    manual, regrade_requests = ManualGrading.load(folder), requests.load(folder)
    lines = result.students
    if regrade_requests:
        lines = tuple(
            replace(line, requests=tuple(request for request in regrade_requests if request.student == line.student))
            for line in lines
        )
    excused = {line.student for line in lines if line.status == "excused"}
    of = {member.student: unit for unit in units.of(students, excused) for member in unit.members}
    if result.reports_released or (manual.rubric is not None and manual.rubric.released):
        notes = {key: _line_notes(folder, of[key]) for key in of}
        lines = tuple(replace(line, line_notes=notes.get(line.student, ())) for line in lines)
    if (points := manual.rubric) is None:
        return replace(result, students=lines)
    lines = tuple(
        line if line.status == "excused" else _with_manual(line, points, manual, of.get(line.student), result.max_score)
        for line in lines
    )
    return replace(
        result,
        students=lines,
        max_score=result.max_score + (points.points if points.released else Decimal(0)),
        manual_title=points.title,
        manual_max=points.points,
        manual_released=points.released,
    )


def _line_notes(folder: Path, unit: units.Unit) -> tuple[LineNote, ...]:
    """What graders said about lines of a submission, by file and line; first what is about lines that are gone."""
    said = line_comments.load(folder, unit.key)
    if not said:
        return ()
    places = line_comments.placed(said, code_files.read(Store(folder / STORE).path(unit.content)))
    notes = [
        LineNote(file=place.file, line=place.line, code=place.comment.code.strip(), text=place.comment.text)
        for place in places
    ]
    return tuple(sorted(notes, key=lambda note: (note.file, note.line or 0)))


def of_unit(
    points: Rubric, criteria: Sequence[Criterion], manual: ManualGrading, unit: units.Unit | None
) -> ManualResult:
    """What one submission was given by now; who handed in nothing has 0."""
    marks_of_unit = manual.marks.get(unit.key, {}) if unit else {}
    rows, anew = [], False
    for criterion in criteria:
        mark = marks_of_unit.get(criterion.id)
        mark = mark and marks.as_of_now(criterion, mark)
        counts = mark is not None and unit is not None and mark.content == unit.content
        anew |= mark is not None and not counts and (mark.done or bool(mark.text or mark.comments))
        given = marks.points(criterion, mark, manual.comments) if mark and unit and mark.done else None
        worth = given if counts else None
        rows.append(
            ManualCriterion(
                id=criterion.id,
                title=criterion.title,
                points=Decimal(0) if unit is None else worth,
                max_points=criterion.points,
                remarks=_remarks(mark, manual.comments, _level(criterion, given)) if mark and given is not None else (),
                former=None if counts else given,
                by=mark.by if mark and worth is not None else "",
                at=mark.at if mark and worth is not None else None,
                about=criterion.about,
            )
        )
    return ManualResult(title=points.title, criteria=tuple(rows), released=points.released, anew=anew)


def _with_manual(
    line: StudentResult, points: Rubric, manual: ManualGrading, unit: units.Unit | None, checks_max: Decimal
) -> StudentResult:
    labs = {excuse.lab: excuse.reason for excuse in line.excused if excuse.lab is not None}
    result = of_unit(points, points.without(labs), manual, unit)
    score = line.score
    if points.released and score is not None:
        own = result.max_points + (line.grade.max_score if line.grade and labs else checks_max)
        total = (line.checks_score or Decimal(0)) + result.points
        score = in_proportion(total, own, checks_max + points.points) if result.complete else None
    return replace(line, manual=result, score=score)


def in_proportion(points: Decimal, of_points: Decimal, most: Decimal) -> Decimal:
    """Points of those that can be earned, as the same part of `most`, to a hundredth; unchanged where both agree."""
    if of_points == most:
        return points
    return (points * most / of_points).quantize(_CENT) if of_points else Decimal(0)


def _level(criterion: Criterion, worth: Decimal) -> str:
    """What the criterion says of work with these points; empty if it says nothing."""
    return next((level.text for level in criterion.level if level.points == worth), "")


def _remarks(mark: Mark, known: Mapping[str, Comment], level: str = "") -> tuple[Remark, ...]:
    said = [Remark(text=level)] if level else []
    said += [Remark(text=known[name].text, points=known[name].points) for name in mark.comments]
    if mark.text.strip():
        said.append(Remark(text=mark.text.strip(), points=mark.adjust or None))
    elif mark.adjust and not level:
        said.append(Remark(text="", points=mark.adjust))
    return tuple(said)
