"""Students and criteria that an instructor's files name, held against the class: a slip of the pen costs no points.

Not for reading those files (`settings.py`, `gradebox/run/overrides.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from gradebook.grading.excused import ExcusedError
from gradebook.results import Excused, Student
from gradebook.settings import Settings, SettingsError
from gradebox.run.overrides import Override, OverrideError


def check(
    settings: Settings, overrides: Sequence[Override], students: Sequence[Student], let_off: Sequence[Excused] = ()
) -> None:
    """Who has an override or an extension, or is excused, is in the class.

    Raises:
        OverrideError, SettingsError, ExcusedError: somebody is not; the message is one line that says whom was meant.
    """
    known = [student.student for student in students]
    teams = sorted({student.team for student in students} - {""})
    for override in overrides:
        if override.student not in (*known, *teams):
            nobody = _nobody(override.student, [*known, *teams])
            raise OverrideError(f"the override of {override.criterion} for {override.student!r}: {nobody}")
    for name in settings.extensions:
        if name not in known:
            raise SettingsError(f"[extensions] {name!r}: {_nobody(name, known)}")
    for entry in let_off:
        if entry.student not in known:
            raise ExcusedError(f"excused.toml names {entry.student!r}: {_nobody(entry.student, known)}")


def notices(
    settings: Settings, overrides: Sequence[Override], students: Sequence[Student], criteria: Collection[str]
) -> list[str]:
    """What an instructor should know: what they decided without any effect.

    Args:
        settings: of the class.
        overrides: all of them.
        students: everybody.
        criteria: the identifiers of those that are graded here.
    """
    times = _unknown_times(settings, students)
    return [*_without_effect(overrides, students, criteria), *([times] if times else [])]


def _without_effect(overrides: Sequence[Override], students: Sequence[Student], criteria: Collection[str]) -> list[str]:
    status = {student.student: student.status for student in students}
    said = {
        "could_not_fetch": "could not be fetched",
        "no_repository": "has no repository that can be fetched",
    }
    texts = []
    for override in overrides:
        about = f"the override of {override.criterion} for {override.student} has no effect"
        if override.criterion not in criteria:
            texts.append(f"{about}: its lab is not graded in this class")
        elif (why := said.get(status.get(override.student, ""))) is not None:
            texts.append(f"{about}: {override.student} {why}, and there is no grade to change")
    return texts


def _unknown_times(settings: Settings, students: Sequence[Student]) -> str | None:
    if not settings.late.deducts or (settings.deadline is None and not settings.extensions):
        return None
    unknown = sum(
        student.content is not None
        and student.submitted_at is None
        and settings.deadline_of(student.student) is not None
        for student in students
    )
    if not unknown:
        return None
    return (
        f"nothing says when {unknown} submission{' was' if unknown == 1 else 's were'} handed in, so no penalty meets "
        'them: set submitted = "files" in class.toml, or give the roster a column submitted_at'
    )


def _nobody(name: str, known: Sequence[str]) -> str:
    folded = {key.casefold(): key for key in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    hint = f"did you mean {folded[near[0]]!r}?" if near else "students are named as in grades.csv"
    return f"there is no such student in this class; {hint}"
