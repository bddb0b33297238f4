"""How a run differs from the one before in the same folder: other people, another course, other teams, labs that are
not there any more. Not for decisions (`unknown_names.py`), nor for scores that changed (`export/changes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from gradebook.results import GradebookError, Student
from gradebook.settings import Settings
from gradebook.store import FILE, Gradebook, Plan
from gradebook.text_files import some
from gradebox.course import rubric
from gradebox.course.rubric import Rubric

_MANY = 3
"""Fewer students may all be others by chance."""


def check_room(out: Path, submissions: Path, own: Sequence[str]) -> None:
    """Nothing that is somebody else's is mixed with what a class leaves in its folder, or written over by it.

    `own` are the folders that it makes there.

    Raises:
        GradebookError: `out` is no place for a gradebook.
    """
    folder, source = out.resolve(), submissions.resolve()
    classes = (source, source.parent) if source.name in own and source.parent != folder else (source,)
    if any((place / FILE).is_file() for place in classes):
        raise GradebookError(
            f"{submissions} is what a class leaves in its folder (--out), and no submissions: name what was handed in"
        )
    if source.is_dir() and (folder == source or source in folder.parents):
        raise GradebookError(
            f"--out {out} is in the folder of submissions, where it would count as one; name a folder elsewhere"
        )
    for name in own:
        if source == folder / name or folder / name in source.parents:
            raise GradebookError(f"{submissions} lies where --out {out} keeps its own files; name another folder")
        if (folder / name).exists() and not (folder / FILE).exists():
            raise GradebookError(
                f"--out {out} has no gradebook, but holds {name!r}, which would be written over; name another folder"
            )


def check_class(before: Collection[str], now: Collection[str], out: Path) -> None:
    """Refuse a class of which nobody was in the run before: its results would replace those of another one.

    Raises:
        GradebookError: it is so.
    """
    if len(before) >= _MANY and len(now) >= _MANY and not set(before) & set(now):
        raise GradebookError(
            f"{out} has another class: none of its {len(before)} students ({some(sorted(before), 3)}) is among these "
            f"{len(now)} ({some(sorted(now), 3)}). Name another folder with --out; if it is the same class under other "
            "identifiers, give a roster that has the old ones as well"
        )


def check_course(before: Plan | None, criteria: Collection[str], out: Path) -> None:
    """Refuse a folder with the class of another course, whose decisions and grades would be mixed with this one's.

    Raises:
        GradebookError: the course has none of the criteria that the run before had.
    """
    if before is not None and before.digests and not set(before.digests) & set(criteria):
        raise GradebookError(
            f"{out} has a class of another course, with {some(sorted(before.digests), 3)}, and this one has "
            f"{some(sorted(criteria), 3)}. Name another folder with --out"
        )


def earlier(student: Student, before: Mapping[str, Student], now: Sequence[Student]) -> Student | None:
    """The student in the run before, perhaps under a key that nobody has any more: without a roster it is a name."""
    if student.student in before:
        return before[student.student]
    keys = {other.student for other in now}
    names = (name for name in (student.name, *student.columns.values()) if name in before and name not in keys)
    return next((before[name] for name in names if _is_unique(name, now)), None)


def _is_unique(name: str, students: Sequence[Student]) -> bool:
    return sum(name in (student.name, *student.columns.values()) for student in students) == 1


def labs_again(gradebook: Gradebook, settings: Settings, now: Rubric) -> tuple[int, ...] | None:
    """The labs of a run that names none, as the run before had them; None for all, whichever the course has now."""
    plan = gradebook.plan()
    then = rubric.from_text(gradebook.rubric_text(plan.rubric_digest))
    if settings.labs is None and {lab.number for lab in then.labs} == set(plan.labs):
        return None
    return plan.labs


def notices(
    settings: Settings,
    before: Mapping[str, Student],
    now: Sequence[Student],
    folders: Callable[[str], Path],
    labs: Sequence[str],
) -> list[str]:
    """What an instructor should know.

    Args:
        settings: of the class.
        before: the students of the run before, by key.
        now: those of this run.
        folders: where the copy of a content is.
        labs: the folders of the labs that are graded.
    """
    moved = [*_other_teams(list(before.values()), now), *_of_namesakes(before, now)]
    return [*moved, *_resubmitted(settings, before, now), *_absent_labs(now, folders, labs)]


def _of_namesakes(before: Mapping[str, Student], now: Sequence[Student]) -> list[str]:
    """Work that was handed in under a name which several students have by now, so that it is nobody's."""
    keys = {student.student for student in now}
    gone = [key for key, student in before.items() if student.content is not None and key not in keys]
    sharing = {name: [other.student for other in now if name in (other.name, *other.columns.values())] for name in gone}
    return [
        f"what {name!r} handed in before counts for nobody, because several students have this name: {some(students)}. "
        "Put the work into a folder that is called as the one whose it is, and run the command again"
        for name, students in sharing.items()
        if len(students) > 1
    ]


def _absent_labs(students: Sequence[Student], folders: Callable[[str], Path], labs: Sequence[str]) -> list[str]:
    """Labs of several that nobody has handed in: their work may be in another download."""
    tops = [folders(student.content) for student in students if student.content is not None]
    absent = [lab for lab in labs if not any((top / lab).is_dir() for top in tops)]
    if not tops or len(labs) == 1 or not absent:
        return []
    return [
        f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} in nobody's submission, so everybody has 0 in "
        "it. If that work is in another download, put the folders of each student together, or grade each lab with "
        "--lab and an --out of its own"
    ]


def _resubmitted(settings: Settings, before: Mapping[str, Student], now: Sequence[Student]) -> list[str]:
    """Who handed in the same files again, after a deadline that the first time was in."""
    texts = []
    for student in now:
        earlier, until = before.get(student.student), settings.in_time_until(student.student)
        if (
            earlier is not None
            and until is not None
            and student.content is not None
            and student.content == earlier.content
            and earlier.submitted_at is not None
            and student.submitted_at is not None
            and earlier.submitted_at <= until < student.submitted_at
        ):
            texts.append(f"{student.student} ({settings.local(earlier.submitted_at):%Y-%m-%d %H:%M %Z})")
    if not texts:
        return []
    return [
        f"the same files as in the run before, which were in time, are late now: {some(texts)}. If the first time "
        "should count, write it into a table of times (submitted in class.toml) or into [extensions]"
    ]


def _other_teams(before: Sequence[Student], now: Sequence[Student]) -> list[str]:
    """Who is in another team than in the run before, so that other work counts for them; teams that are called anew."""
    was = {student.student: student for student in before}
    moved: dict[tuple[str, str], list[Student]] = {}
    for student in now:
        earlier = was.get(student.student)
        if earlier is not None and earlier.columns and student.columns and earlier.team != student.team:
            moved.setdefault((earlier.team, student.team), []).append(student)
    texts = []
    for (old, new), students in moved.items():
        who = ", ".join(student.student for student in students)
        came, went = (f"in the team {team}" if team else "in no team" for team in (new, old))
        contents = [(was[student.student].content, student.content) for student in students]
        others = all(None not in pair and pair[0] != pair[1] for pair in contents)
        work = "; other work counts for them now" if others else ""
        texts.append(
            f"{who}: {came} now, and {went} in the run before{work}. Decisions and marks that name the team "
            f"{old!r} are not theirs any more"
            if old
            else f"{who}: {came} now, and {went} in the run before{work}"
        )
    return texts
