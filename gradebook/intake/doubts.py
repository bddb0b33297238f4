"""What was taken in and may not be what is meant: for people to decide, in a line each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gradebook import spelt_names
from gradebook.intake import handed_in, platforms, zip_and_tar
from gradebook.intake.handed_in import HandedIn, IntakeError
from gradebook.intake.owners import Theirs
from gradebook.intake.repositories import shown
from gradebook.intake.times import Times
from gradebook.results import Student
from gradebook.roster import Entry, Roster, folded
from gradebook.settings import Settings
from gradebook.text_files import some

_SEVERAL = 3
"""So many different submissions of one team, or so many teams that have different ones, are hardly mistakes."""

_FILES = ("folder", "archive", "file", "repository")
"""What may be graded, unlike what was typed into a platform."""
_TABLES = (".csv", ".toml", ".xlsx", ".ods", ".json", ".yml")
"""Suffixes of what instructors keep next to submissions."""


def shared_repositories(by_key: Mapping[str, Sequence[Theirs]], roster: Roster | None) -> list[str]:
    """Students who have one repository without being a team: mostly an address was copied into another row."""
    teams = {entry.student: folded(entry.team) for entry in (roster.entries if roster else ())}
    owners: dict[str, list[str]] = {}
    for key, theirs in by_key.items():
        for address in {owned.handed_in.address for owned in theirs if owned.handed_in.address}:
            owners.setdefault(address, []).append(key)
    return [
        f"{', '.join(keys)} have one repository in the list, {shown(address)}, and one grade: correct the address, or "
        "put them into one team"
        for address, keys in owners.items()
        if len({teams.get(key) or key for key in keys}) > 1
    ]


def check_depth(unmatched: Sequence[HandedIn], roster: Roster | None, source: Path, by_key: Collection[str]) -> None:
    """Refuse a folder above that of the submissions, or one with a folder for each section.

    Args:
        unmatched: the folders that belong to nobody.
        roster: who is in the class.
        source: as the command was given it.
        by_key: whose everything is.

    Raises:
        IntakeError: it is so.
    """
    holding: dict[str, list[str]] = {}
    for thing in unmatched if roster is not None else ():
        inside = sorted(thing.path.iterdir()) if thing.path is not None else []
        owners = [roster.owners(_handles(path.name)) for path in inside] if roster is not None else []
        inner = list(dict.fromkeys(theirs[0].student for theirs in owners if theirs))
        inner = inner or (_authors(inside, roster) if roster is not None else [])
        if len(inner) > 1:
            holding[thing.label] = inner
    if not holding:
        return
    first, students = next(iter(holding.items()))
    what = f"{source / first} has the work of several students ({some(students, 3)}), so it is no submission"
    if roster is not None and any(entry.student in by_key for entry in roster.entries):
        raise IntakeError(
            f"{what}, although there are submissions next to it: if these are older ones, move {some(list(holding))} "
            f"out of {source}; else put what is in it next to the others"
        )
    if len(holding) == 1:
        raise IntakeError(f"{what}: name that folder instead of {source}")
    raise IntakeError(
        f"{what}; neither {'is' if len(holding) == 2 else 'are'} {some([name for name in holding if name != first])}. "
        "Put what is in these folders into one folder, and name that"
    )


def check_contents(
    students: Sequence[Student], folders: Callable[[str], Path], roster: Roster | None, source: Path
) -> None:
    """Refuse an archive of several students' work, as a drive splits a class into: each was taken for a submission.

    Args:
        students: everybody, as they were taken in.
        folders: where the copy of a content is.
        roster: who is in the class.
        source: as the command was given it.

    Raises:
        IntakeError: there is one.
    """
    for student in students:
        if roster is None or student.columns or student.content is None:
            continue
        folder = folders(student.content)
        names = [path.name for lab in folder.iterdir() if lab.is_dir() for path in lab.iterdir() if path.is_dir()]
        owners = [theirs[0] for name in names if (theirs := roster.owners([name]))]
        if len({owner.team or owner.student for owner in owners}) > 1:
            raise IntakeError(
                f"{source / student.student} has the work of several students "
                f"({some(sorted(owner.student for owner in owners), 3)}), so it is no submission: unpack it, with the "
                "others if a drive has split its download, into one folder, and name that folder"
            )


def _authors(files: Sequence[Path], roster: Roster) -> list[str]:
    """Whose these files may be, if each has another student's name in its own; nobody's if it is not so."""
    named = [
        [entry.student for entry in roster.entries if spelt_names.may_be_of(path.stem, entry.name, entry.student)]
        for path in files
        if path.is_file()
    ]
    alone = {students[0] for students in named if len(students) == 1}
    return sorted(alone) if len(alone) == len(named) else []


def _handles(name: str) -> tuple[str, ...]:
    """Whose a folder or archive of this name may be."""
    mark = platforms.mark(name) or platforms.mark(zip_and_tar.stem(name))
    return mark.handles if mark is not None else (zip_and_tar.stem(name).removesuffix(".git"),)


def sections(torn: Mapping[str, int]) -> list[str]:
    """What to say of teams whose members handed in different work each: they may be no teams.

    `torn` has how many different ones there are of each team.
    """
    if max(torn.values(), default=0) < _SEVERAL and len(torn) < _SEVERAL:
        return []
    return [
        f"members of one team handed in different work: {some(list(torn))}. If these are sections, and not teams, "
        "nobody should be in a team: remove teams from class.toml, or the column team from the roster"
    ]


def about_attempts(
    by_key: Mapping[str, Sequence[Theirs]], earlier: Sequence[HandedIn], settings: Settings
) -> list[str]:
    """What the last attempt of a student, which counts alone, may lack: being in time, or files."""
    return [*_attempts_in_time(by_key, earlier, settings), *_files_of_earlier_attempts(by_key, earlier)]


def _attempts_in_time(
    by_key: Mapping[str, Sequence[Theirs]], earlier: Sequence[HandedIn], settings: Settings
) -> list[str]:
    """Students whose last attempt counts and is late, although an earlier one was in time.

    Args:
        by_key: what counts, by student.
        earlier: the attempts that a later one has replaced.
        settings: of the class.
    """
    texts = []
    for key, theirs in by_key.items():
        deadline = settings.in_time_until(key)
        names = {(owned.handed_in.platform, owned.handed_in.key) for owned in theirs}
        moments = [owned.handed_in.submitted_at for owned in theirs if owned.handed_in.submitted_at]
        in_time = [
            (thing.submitted_at, thing.label)
            for thing in earlier
            if thing.submitted_at
            and (thing.platform, thing.key) in names
            and deadline
            and thing.submitted_at <= deadline
        ]
        if in_time and moments and deadline is not None and max(moments) > deadline:
            late, (moment, label) = settings.local(max(moments)), max(in_time)
            texts.append(
                f"{key}: the last attempt, of {late:%Y-%m-%d %H:%M %Z}, counts and is late; {label} of "
                f"{settings.local(moment):%Y-%m-%d %H:%M %Z} was in time. If that one should count, remove what came "
                "later from the submissions and run the command again"
            )
    return texts


def _files_of_earlier_attempts(by_key: Mapping[str, Sequence[Theirs]], earlier: Sequence[HandedIn]) -> list[str]:
    """Students whose last attempt, which counts alone, lacks files that an earlier one had."""
    texts = []
    for key, theirs in by_key.items():
        names = {(owned.handed_in.platform, owned.handed_in.key) for owned in theirs}
        now = {owned.handed_in.name for owned in theirs}
        before = dict.fromkeys(
            thing.name for thing in earlier if (thing.platform, thing.key) in names and thing.name not in now
        )
        if lacking := [name for name in before if name and not zip_and_tar.has_suffix(name)]:
            texts.append(
                f"{key}: the last attempt counts alone, and an earlier one had files that it lacks: {some(lacking)}. "
                "If these should count as well, ask for all files in one attempt"
            )
    return texts


def attempt_before(theirs: Sequence[Theirs], earlier: Sequence[HandedIn]) -> HandedIn | None:
    """The last of a student's earlier attempts that has a file; None where there is none."""
    names = {(owned.handed_in.platform, owned.handed_in.key) for owned in theirs}
    files = [thing for thing in earlier if (thing.platform, thing.key) in names and thing.path and thing.kind in _FILES]
    return max(files, key=lambda thing: thing.attempt, default=None)


def without_work(entry: Entry, roster: Roster | None, passed_over: Sequence[str], times: Times) -> Student:
    """Somebody of whom there is no submission: missing, if nothing that is none has their name.

    A time all the same, by a table or the roster, says that the work is elsewhere.
    """
    student = Student(
        student=entry.student, name=entry.name, columns=entry.columns, status="missing", team=entry.team,
        submitted_at=times.of.get(entry.student, entry.submitted_at),
    )  # fmt: skip
    if roster is None:
        return student
    for name in passed_over:
        stands_for, reason = handed_in.not_here(name)
        if reason and entry.student in _owners(roster, (stands_for, zip_and_tar.stem(stands_for))):
            return replace(student, status="could_not_fetch", reason=reason)
    others = [
        name for name in passed_over if (suffix := Path(name).suffix) and suffix not in _TABLES if " (" not in name
    ]
    if theirs := [repr(name) for name in others if entry.student in _owners(roster, (Path(name).stem,))]:
        what = f"handed in {some(theirs)} alone, which is no folder, archive or repository: hand in the labs' folders"
        return replace(student, status="refused", reason=what)
    if perhaps := [repr(name) for name in others if spelt_names.may_be_of(name, entry.name, entry.student)]:
        what = f"nothing was handed in under this name, but {some(perhaps)} is among the submissions, and may be theirs"
        return replace(student, reason=what)
    return student


def _owners(roster: Roster, names: Sequence[str]) -> set[str]:
    return {owner.student for name in names for owner in roster.owners([name])}
