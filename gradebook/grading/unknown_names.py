"""Students and criteria that an instructor's files name, found in the class: a slip of the pen costs no points.

Not for reading those files (`settings.py`, `gradebox/run/overrides.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gradebook.grading import time_notices
from gradebook.grading.excused import ExcusedError
from gradebook.grading.held_back import HeldBackError
from gradebook.identity import Directory, GoneStudentError, UnknownStudentError
from gradebook.results import Excused, HeldBack, Student
from gradebook.settings import Settings, SettingsError
from gradebook.text_files import some, with_name
from gradebox.run.overrides import Override, OverrideError

_MANY = 3
"""Fewer students who handed in nothing are no news."""


@dataclass(frozen=True)
class Decisions:
    """What an instructor decided, by the keys of students, whatever name the files use."""

    settings: Settings
    overrides: tuple[Override, ...]
    excused: tuple[Excused, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    of_gone: tuple[str, ...] = ()
    """Decisions about students who have left the roster, which count again once they are back."""


def resolve(
    settings: Settings,
    overrides: Sequence[Override],
    directory: Directory,
    let_off: Sequence[Excused] = (),
    held: Sequence[HeldBack] = (),
) -> Decisions:
    """Find the students whom an instructor's files name; who has left the roster may be back some day.

    Raises:
        OverrideError, SettingsError, ExcusedError, HeldBackError: a name means nobody, or not for certain
            whom; one line.
    """
    given: dict[tuple[str, str], Override] = {}
    gone: list[str] = []
    for override in overrides:
        try:
            keys = directory.keys(override.student, recorded=override.at is not None)
        except GoneStudentError as error:
            gone.append(f"the override of {override.criterion} for {override.student!r} has no effect: {error}")
            continue
        except UnknownStudentError as error:
            raise OverrideError(f"the override of {override.criterion} for {override.student!r}: {error}") from None
        for key in keys:
            earlier = given.get((key, override.criterion))
            alone = len(keys) == 1  # what is given to one student goes before what is given to the team
            if earlier is not None and alone == (
                len(directory.keys(earlier.student, recorded=earlier.at is not None)) == 1
            ):
                raise OverrideError(
                    f"{override.criterion} of {key} is overridden twice, for {earlier.student!r} and for "
                    f"{override.student!r}; keep one"
                )
            if earlier is None or alone:
                given[key, override.criterion] = override
    others: list[tuple[str, str, datetime | None]] = [
        (f"class.toml: [extensions] {name!r}", name, None) for name in settings.extensions
    ]
    others += [(f"excused.toml's entry of {entry.student!r}", entry.student, entry.at) for entry in let_off]
    others += [(f"held_back.toml's entry of {entry.student!r}", entry.student, entry.at) for entry in held]
    for what, name, at in others:
        try:
            directory.keys(name, recorded=at is not None)
        except GoneStudentError as error:
            gone.append(f"{what} has no effect: {error}")
        except UnknownStudentError:
            pass  # an error, as below
    return Decisions(
        with_extensions(settings, directory),
        tuple(replace(override, student=key) for (key, _), override in given.items()),
        excused_by_key(let_off, directory),
        held_by_key(held, directory),
        tuple(gone),
    )


def with_extensions(settings: Settings, directory: Directory, *, strict: bool = True) -> Settings:
    """The settings with extensions by key. A student's own goes before the team's; unless `strict`, unknown names stay.

    Raises:
        SettingsError: a name means nobody, it cannot be known whom, or two name one student.
    """
    own: dict[str, tuple[str, datetime]] = {}
    of_team: dict[str, tuple[str, datetime]] = {}
    for name, moment in settings.extensions.items():
        try:
            keys = directory.keys(name)
        except UnknownStudentError as error:
            if strict and not isinstance(error, GoneStudentError):
                raise SettingsError(f"class.toml: [extensions] {name!r}: {error}") from None
            keys = (name,)
        chosen = own if len(keys) == 1 else of_team
        for key in keys:
            other, earlier = chosen.setdefault(key, (name, moment))
            if earlier != moment:
                raise SettingsError(
                    f"class.toml: [extensions] {other!r} and {name!r} are both {key}, with different deadlines; keep "
                    "one"
                )
    return replace(settings, extensions={key: moment for key, (_, moment) in {**of_team, **own}.items()})


def excused_by_key(let_off: Sequence[Excused], directory: Directory) -> tuple[Excused, ...]:
    """Who is excused, by key. Raises `ExcusedError` as `resolve` does."""
    entries: list[Excused] = []
    for entry in let_off:
        try:
            keys = directory.keys(entry.student, recorded=entry.at is not None)
            entries += [replace(entry, student=key) for key in keys]
        except GoneStudentError:
            continue
        except UnknownStudentError as error:
            raise ExcusedError(f"excused.toml names {entry.student!r}: {error}") from None
    return tuple(entries)


def held_by_key(held: Sequence[HeldBack], directory: Directory) -> tuple[HeldBack, ...]:
    """Who is held back, by key. Raises `HeldBackError`."""
    entries: list[HeldBack] = []
    for entry in held:
        try:
            keys = directory.keys(entry.student, recorded=entry.at is not None)
            entries += [replace(entry, student=key) for key in keys]
        except GoneStudentError:
            continue
        except UnknownStudentError as error:
            raise HeldBackError(f"held_back.toml names {entry.student!r}: {error}") from None
    return tuple(entries)


def notices(
    settings: Settings,
    overrides: Sequence[Override],
    students: Sequence[Student],
    criteria: Collection[str],
    let_off: Sequence[Excused] = (),
) -> list[str]:
    """What an instructor should know: what they decided without any effect.

    Args:
        settings: of the class.
        overrides: all of them.
        students: everybody.
        criteria: the identifiers of those that are graded here.
        let_off: who is excused, and from what.
    """
    said = (*time_notices.notices(settings, students), _mostly_missing(students), _untitled(settings, students))
    labs = {name.partition(".")[0] for name in criteria}
    excuses = [
        f"excused.toml lets {entry.student} off lab {entry.lab}, which is not graded in this class, so it has no effect"
        for entry in let_off
        if entry.lab is not None and f"lab{entry.lab}" not in labs
    ]
    excuses += _worked_all_the_same(students, let_off)
    without_effect = _without_effect(overrides, students, criteria)
    return [*without_effect, *excuses, *_torn_teams(settings, students), *filter(None, said)]


def _worked_all_the_same(students: Sequence[Student], let_off: Sequence[Excused]) -> list[str]:
    """What to say of students who were excused from everything, and handed in something after that."""
    since = {entry.student: entry.at for entry in let_off if entry.lab is None}
    worked = [
        with_name(student.student, student.name)
        for student in students
        if student.student in since
        and student.taken_at is not None
        and ((at := since[student.student]) is None or student.taken_at > at)
    ]
    if not worked:
        return []
    return [f"excused, and handed in after that, which does not count: {some(worked)}. excused.toml has the entries"]


def _untitled(settings: Settings, students: Sequence[Student]) -> str:
    """What to say if Moodle would call the assignment as the folder of submissions is called."""
    of_moodle = any("Identifier" in student.columns for student in students)
    if settings.title or not of_moodle:
        return ""
    return "class.toml has no title, so the files for Moodle are named after the folder of submissions: set title"


def _torn_teams(settings: Settings, students: Sequence[Student]) -> list[str]:
    """Teams whose work is late for one member and in time for another, who has an extension alone."""
    teams: dict[str, list[Student]] = {}
    for student in students:
        if student.team and student.submitted_at:
            teams.setdefault(student.team, []).append(student)
    texts = []
    for team, members in teams.items():
        late = [
            member.student
            for member in members
            if member.submitted_at
            and (until := settings.in_time_until(member.student)) is not None
            and member.submitted_at > until
        ]
        in_time = [member.student for member in members if member.student not in late]
        if late and in_time:
            texts.append(
                f"the work of the team {team} is late for {_with_deadlines(settings, late)} and in time for "
                f"{_with_deadlines(settings, in_time)}. If that is not meant, write {team!r} into [extensions] for "
                "all of them, and remove entries of its members, which go before the team's"
            )
    return texts


def _with_deadlines(settings: Settings, students: Sequence[str]) -> str:
    moments = {student: settings.deadline_of(student) for student in students}
    return ", ".join(
        f"{student} (deadline {settings.local(moment):%Y-%m-%d %H:%M})" if moment else student
        for student, moment in moments.items()
    )


def _mostly_missing(students: Sequence[Student]) -> str:
    """What to say where so many have nothing that the download may not be whole."""
    # Who is outside the roster is no student of the class, in this count as in the summary.
    students = [student for student in students if student.columns] or students
    missing = sum(student.status == "missing" for student in students)
    if missing < _MANY or missing * 3 < len(students):
        return ""
    return (
        f"{missing} of {len(students)} students handed in nothing. If the download is not whole, give the whole one: "
        "some tools fetch 30 repositories, or one page, unless an option says otherwise"
    )


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
