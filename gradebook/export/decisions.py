"""What an instructor decides while reviewing: accept what is open, or give points by hand.

Points given by hand go into the class's file of overrides, which stays the instructor's: comments and everything else
in it are kept. Not for listing what is open (`reviews.py`) or for grading again (`gradebook/`).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path

from gradebook.command_name import command
from gradebook.export import reviews
from gradebook.export.view import Line, View
from gradebook.grading.manual_grading import now
from gradebook.lateness import deduction
from gradebook.text_files import quoted, target
from gradebox.course.rubric import Rubric
from gradebox.report.document import points as shown
from gradebox.run import overrides
from gradebox.run.overrides import Override, OverrideError

ALL = "all"
"""Stands for every criterion of a student, or for every student."""

_TOO_MANY = Decimal(10**6)
"""So many points are a slip of the keyboard, and nobody wants them written out."""
_HEADER = "[[override]]"
_OURS = ("points", "reason", "by", "at")
"""Keys of an entry that a new decision replaces."""
_NEW_FILE = "# Points that an instructor gave by hand instead of the checks'; see docs/one-grade.md.\n"


def student_of(view: View, student: str) -> Line:
    """The line of a student.

    Raises:
        ReviewError: there is none of that key.
    """
    line = view.line(student)
    if line is None:
        raise reviews.ReviewError(f"there is no student {student!r} in this class")
    return line


def accept(view: View, folder: Path, student: str, criterion: str, by: str = "") -> Sequence[reviews.Accepted]:
    """Record that all that is open in a criterion of a student (or in all of them) was looked at.

    Raises:
        ReviewError: there is no such student, or nothing is open there.
    """
    line = student_of(view, student)
    accepted = [item for item in line.open if criterion in (ALL, item.criterion) and item.can_be_accepted]
    if not accepted and any(item.kind == "unfetched" for item in line.open):
        raise reviews.ReviewError(
            f"{student} could not be fetched, and that is no result to accept: run {command()} class again, fix the "
            "address in the list, or take it out of the list"
        )
    if not accepted:
        where = sorted({item.criterion for item in line.open})
        rest = f"; open is {', '.join(where)}" if where else ""
        place = f"for {student}" if criterion == ALL else f"in {criterion} of {student}"
        raise reviews.ReviewError(f"nothing is open {place}{rest}")
    names = dict.fromkeys(item.criterion for item in accepted)
    moment = datetime.now(UTC)
    return [reviews.accept(folder, [item for item in accepted if item.criterion == name], moment, by) for name in names]


def accept_everybody(view: View, folder: Path, criterion: str, by: str = "") -> Sequence[reviews.Accepted]:
    """Accept for all students at once how their work came, or did not; only that, because checks want a look each.

    Raises:
        ReviewError: another criterion is named, or nothing is open there.
    """
    if criterion != reviews.HANDING_IN:
        raise reviews.ReviewError(f"for all students at once only {reviews.HANDING_IN} can be accepted")
    students = [line.student for line in view.lines if any(_settles(item) for item in line.open)]
    if not students:
        raise reviews.ReviewError(f"nothing is open in {reviews.HANDING_IN} that could be accepted")
    return [entry for student in students for entry in accept(view, folder, student, criterion, by)]


def _settles(item: reviews.Item) -> bool:
    return item.criterion == reviews.HANDING_IN and item.can_be_accepted


def override(
    file: Path,
    rubric: Rubric,
    student: str,
    criterion: str,
    points: str,
    reason: str,
    by: str = "",
    former: Collection[str] = (),
) -> Override:
    """Write an override into the class's file, instead of an earlier one for the same criterion.

    Entries for `former` criteria, which the class has no more, stay as they are.

    Raises:
        OverrideError: the file cannot be used, or the override makes no sense; nothing is changed then.
    """
    new = Override(student, criterion, _points(points), reason.strip(), by, now())
    text = file.read_text(encoding="utf-8-sig") if file.is_file() else _NEW_FILE
    former = {*former} - {criterion}
    before = overrides.load(file, rubric, former) if file.is_file() else ()
    after = {(entry.student, entry.criterion): entry for entry in before} | {(student, criterion): new}
    file = target(file)
    draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(_changed(text, new), encoding="utf-8")
        try:
            written = overrides.load(draft, rubric, former)
        except OverrideError as error:
            # The earlier entries were accepted, so the new one is wrong, and not a line of the file.
            said = re.sub(rf"^{re.escape(str(draft))}(:\d+)?: ", "", str(error))
            raise OverrideError(said.removesuffix(overrides.OF_AN_ENTRY)) from None
        if {(entry.student, entry.criterion): entry for entry in written} != after:
            raise OverrideError(f"{file} is written in a way that cannot be changed here; change it by hand")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return new


def having_fewer(view: View, rubric: Rubric, criterion: str, amount: str) -> tuple[list[str], list[str], list[str]]:
    """Who of the graded has fewer points for a criterion than `amount`; who has as many; whom an override is about.

    Raises:
        OverrideError: there is no such criterion, or this is no number of its points.
    """
    wanted = _points(amount)
    most = {row.id: row.points for lab in rubric.labs for row in lab.criteria}
    if criterion not in most or not 0 <= wanted <= most[criterion]:
        why = f"it gives 0 to {shown(most[criterion])}" if criterion in most else f"there are {', '.join(most)}"
        raise OverrideError(f"{amount} points for {criterion!r}: {why}")
    fewer, as_many, decided = list[str](), list[str](), list[str]()
    for line in view.graded:
        rows = [row for lab in line.grade.labs for row in lab.criteria if row.id == criterion] if line.grade else []
        for row in rows:
            group = decided if row.override is not None else as_many if row.points >= wanted else fewer
            group.append(line.student)
    return fewer, as_many, decided


def effect(before: View, after: View, student: str, criterion: str) -> str:
    """What a student's score is after an override, and why it is not another one."""
    was, line = student_of(before, student), student_of(after, student)
    student = line.who
    if line.result.status == "excused":
        return f"{student} is excused, so the points do not count"
    graded = () if line.grade is None else (row.id for lab in line.grade.labs for row in lab.criteria)
    if criterion not in graded:
        return f"{student}: the points have no effect, because {_no_grade(line, criterion)}"
    if line.result.score is None:
        return f"{student} has no score yet{_why_no_score(line, after)}"
    same = ", as before" if was.result.score == line.result.score else ""
    late = line.result.late
    lost = f"; {deduction(late.points)} for lateness ({late.rule})" if late is not None and late.points else ""
    kept = "; the score is held back, so no export has it" if line.is_held_back else ""
    return f"{student} has {shown(line.result.score)} of {shown(line.most)} points now{same}{lost}{kept}"


def replaced(before: View, student: str, new: Override) -> str:
    """What to say of an earlier override for the same criterion, which somebody else may have given; empty for none."""
    earlier = student_of(before, student).result.overrides
    old = next((override for override in earlier if override.criterion == new.criterion), None)
    if old is None or (old.points, old.reason) == (new.points, new.reason):
        return ""
    by = f"{old.by}: " if old.by else ""
    return f"this replaces {shown(old.points)} points for {old.criterion} of {new.student} ({by}{old.reason})"


def _why_no_score(line: Line, view: View) -> str:
    if (line.result.manual is not None and not line.result.manual.complete) or any(
        not report.counts for report in line.result.reports
    ):
        return f": people have not graded it to the end ({view.result.command('manual list')})"
    return f": {line.result.reason}" if line.result.reason else ""


def _no_grade(line: Line, criterion: str) -> str:
    if line.grade is None:
        return f"there is no grade to change ({line.result.status.replace('_', ' ')})"
    lab = criterion.partition(".")[0]
    excused = any(f"lab{excuse.lab}" == lab for excuse in line.result.excused)
    return f"{line.student} is excused from {lab}" if excused else f"{lab} is not graded in this class"


def _points(text: str) -> Decimal:
    """A number of points. Raises `OverrideError` if it is none."""
    if text.strip().startswith("+"):
        raise OverrideError(
            f"{text!r} would add points, and an override says how many a criterion has in the end: write that number"
        )
    try:
        points = Decimal(_with_a_point(text))
    except InvalidOperation:
        raise OverrideError(f"{text!r} is no number of points; write it like 4.5") from None
    if not points.is_finite() or abs(points) >= _TOO_MANY:
        raise OverrideError(f"{text!r} is no number of points; write it like 4.5")
    return points


def _with_a_point(points: str) -> str:
    """A number as Python reads it; half of the world writes decimals with a comma."""
    return points.replace(",", ".") if points.count(",") == 1 and "." not in points else points


def _changed(text: str, override: Override) -> str:
    """The file with one override set; every other line stays as it is."""
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.strip().startswith(_HEADER)]
    for start, stop in pairwise([*starts, len(lines)]):
        block = lines[start:stop]
        if _is_about(block, override):
            first = next(number for number, line in enumerate(block) if _sets(line, *_OURS))
            above, below = block[:first], [line for line in block[first:] if not _sets(line, *_OURS)]
            lines[start:stop] = [*above, *_values(override), *below]
            return "".join(lines)
    gap = "\n" if lines and lines[-1].strip() else ""
    entry = [
        f"{_HEADER}\n",
        f"student = {quoted(override.student)}\n",
        f"criterion = {quoted(override.criterion)}\n",
        *_values(override),
    ]
    return "".join([*_ended(lines), gap, *entry])


def _is_about(block: Sequence[str], override: Override) -> bool:
    try:
        (entry,) = tomllib.loads("".join(block))["override"]
    except (tomllib.TOMLDecodeError, KeyError, ValueError):
        return False
    return (entry.get("student"), entry.get("criterion")) == (override.student, override.criterion)


def _sets(line: str, *keys: str) -> bool:
    name, equals, _ = line.partition("=")
    return bool(equals) and name.strip() in keys


def _values(override: Override) -> list[str]:
    values = [f"points = {override.points:f}\n", f"reason = {quoted(override.reason)}\n"]
    values += [f"by = {quoted(override.by)}\n"] if override.by else []
    values += [f"at = {override.at.isoformat()}\n"] if override.at else []
    return values


def _ended(lines: Sequence[str]) -> list[str]:
    """With a line end after the last line."""
    return [*lines[:-1], lines[-1] if lines[-1].endswith("\n") else f"{lines[-1]}\n"] if lines else []
