"""Take in what a class handed in: find each submission, unpack it, find the labs in it, and keep a copy by its content.

Not for grading. What cannot be taken is refused with a reason for the student, never passed over.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gradebook.intake import archives, handed_in, unpacking
from gradebook.intake.handed_in import HandedIn, IntakeError
from gradebook.intake.names import Names, Refused
from gradebook.intake.repositories import Commit, CouldNotFetch, Repository
from gradebook.intake.roster import Roster
from gradebook.settings import IntakeLimits, Settings
from gradebox.sandbox import SubmissionError, copying
from gradebox.texts import printable


@dataclass(frozen=True, kw_only=True)
class Student:
    """One student, and what became of what they handed in."""

    student: str
    name: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    status: Literal["taken", "kept", "missing", "refused", "could_not_fetch", "no_repository"]
    """`kept`: what an earlier run took in, because nothing could be fetched now."""
    reason: str = ""
    """Why there is nothing to grade; of what was taken, what the student should know of that."""
    submitted_at: datetime | None = None
    commit: str | None = None
    content: str | None = None
    """SHA-256 of the submission, by which its copy is found."""
    taken_at: datetime | None = None
    """When we took it in."""


STORE = "submissions"
"""The folder beside a gradebook where the copies lie."""


class Store:
    """The copies of submissions, each in a folder named by its content, so that equal ones are kept and graded once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, content: str) -> Path:
        """The folder to grade."""
        return self._folder / content / "labs"

    def keep(self, labs: Path, limits: IntakeLimits) -> str:
        """Copy the labs in this folder and return their digest.

        Raises:
            Refused: they cannot be graded as they are.
        """
        try:
            entries = copying.scan(labs)
            names, budget = Names(limits.files), archives.Budget(limits.bytes)
            for entry in entries:
                names.file(entry.target)
                budget.take(entry.size_bytes)
            self._folder.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
            try:
                content = copying.write(entries, draft / "labs")
                draft.chmod(0o755)
                if not self.path(content).is_dir():
                    draft.rename(self._folder / content)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        except SubmissionError as error:
            raise Refused(str(error).replace(f"{labs} ", "", 1)) from None
        return content


class Intake:
    """Takes in the submissions of one class."""

    def __init__(self, settings: Settings, roster: Roster | None, store: Store, room: Path, rev: str | None) -> None:
        """`room` is a folder for what is in the making; `rev` names one commit, tag or branch of every repository."""
        self._settings = settings
        self._roster = roster
        self._store = store
        self._room = room
        self._rev = rev

    def take_all(self, source: Path, told: Callable[[str], None]) -> list[Student]:
        """Every student: of the submissions in `source`, and of the roster.

        Args:
            told: is called with each submission's name before it is taken.

        Raises:
            IntakeError: there is no such folder, archive or list, or nothing in it.
        """
        with self._unpacked(source) as folder:
            found: dict[str, list[HandedIn]] = {}
            for one in handed_in.find(folder):
                found.setdefault(self._key(one), []).append(one)
            self._set_apart_namesakes(found)
            students = []
            for key, ones in found.items():
                told(key)
                students.append(self._take(key, ones))
        for entry in self._roster.entries if self._roster else ():
            if entry.student not in found:
                students.append(
                    Student(student=entry.student, name=entry.name, columns=entry.columns, status="missing")
                )
        return sorted(students, key=lambda student: student.student)

    def _set_apart_namesakes(self, found: dict[str, list[HandedIn]]) -> None:
        """What only calls itself by a student's name does not stand beside what has that student's identifier.

        It becomes a submission that matches nobody, for a person to look at.
        """
        for key, ones in list(found.items()):
            sure = [one for one in ones if self._roster is not None and self._roster.identifies(one.handles)]
            if 0 < len(sure) < len(ones):
                found[key] = sure
                for one in ones:
                    if one not in sure:
                        found.setdefault(one.key, []).append(one)

    def _key(self, one: HandedIn) -> str:
        entry = self._roster.find(one.handles) if self._roster else None
        return entry.student if entry else one.key

    def _take(self, key: str, ones: list[HandedIn]) -> Student:
        entry = self._roster.find([key, *ones[0].handles]) if self._roster else None
        student = Student(
            student=key,
            name=entry.name if entry else "",
            columns=entry.columns if entry else {},
            status="refused",
            submitted_at=entry.submitted_at if entry else None,
        )
        try:
            if len(ones) > 1:
                names = ", ".join(sorted(one.label for one in ones))
                raise Refused(f"handed in more than once: {names}; keep one of them")
            return self._taken(student, ones[0])
        except Refused as refusal:
            return replace(student, reason=printable(str(refusal), lines=False))
        except CouldNotFetch as failure:
            status: Literal["no_repository", "could_not_fetch"]
            status = "no_repository" if failure.nowhere else "could_not_fetch"
            return replace(student, status=status, reason=printable(str(failure), lines=False))
        except archives.CannotStore as error:
            raise IntakeError(str(error)) from None
        except OSError as error:
            raise IntakeError(f"{key} cannot be taken in: {error.filename or ''} {error.strerror}") from None

    def _taken(self, student: Student, one: HandedIn) -> Student:
        limits = self._settings.limits
        self._room.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="taking-", dir=self._room) as temporary:
            work = Path(temporary)
            commit: Commit | None = None
            submitted_at: datetime | None
            if one.kind == "repository":
                repository = self._repository(one)
                deadline = self._settings.deadline_of(student.student)
                if deadline is not None:
                    deadline += self._settings.late.grace
                commit = repository.choose(one.rev or self._rev, deadline, self._settings.git)
                repository.extract(commit, work, files=limits.files, limit_bytes=limits.bytes)
                top, submitted_at = work, commit.time
            else:
                assert one.path is not None
                top, submitted_at = one.path, self._time(one.path)
                packed = one.path if one.kind == "archive" else _only_archive(one.path)
                if packed is not None:
                    unpacking.unpack(packed, work, files=limits.files, limit_bytes=limits.bytes)
                    top, submitted_at = work, self._time(packed)
            content = self._store.keep(find_labs(top), limits)
        return replace(
            student,
            status="taken",
            submitted_at=student.submitted_at or submitted_at,
            reason=_later(commit),
            commit=commit.id if commit else None,
            content=content,
            taken_at=datetime.now(UTC).replace(microsecond=0),
        )

    def _repository(self, one: HandedIn) -> Repository:
        room = self._room / "repositories"
        if one.path is not None:
            return Repository.of_folder(one.path, room)
        assert one.address is not None
        return Repository.of_address(one.address, room, self._settings.git.protocols)

    def _time(self, path: Path) -> datetime | None:
        """When the newest file was changed, where the settings say that this means anything."""
        if not self._settings.times_of_files:
            return None
        if path.is_dir():
            newest = max((entry.modified_ns for entry in _scanned(path)), default=None)
        else:
            newest = path.stat().st_mtime_ns
        return None if newest is None else datetime.fromtimestamp(newest // 10**9, UTC)

    @contextlib.contextmanager
    def _unpacked(self, source: Path) -> Iterator[Path]:
        """The folder of submissions, or the list; an archive of a whole class is unpacked meanwhile."""
        if not (source.is_file() and archives.has_suffix(source.name)):
            yield source
            return
        self._room.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="class-", dir=self._room) as temporary:
            try:
                unpacking.unpack(source, Path(temporary), files=100_000, limit_bytes=16 * 2**30)
            except Refused as refusal:
                raise IntakeError(f"{source} {refusal}; or unpack it yourself, and name the folder") from None
            except archives.CannotStore as error:
                raise IntakeError(str(error)) from None
            items = list(Path(temporary).iterdir())
            # One student's folder is no wrapper: the names in it are the student's to choose.
            is_wrapped = (
                len(items) == 1
                and items[0].is_dir()
                and handed_in.whose(items[0].name) is None
                and _labs_at(items[0]) is None
            )
            yield items[0] if is_wrapped else Path(temporary)


def _later(commit: Commit | None) -> str:
    """What a student should know whose last commits do not count."""
    if commit is None or not commit.later:
        return ""
    several = commit.later > 1
    return (
        f"commit {commit.id[:10]} was the last in time; {commit.later} later {'ones' if several else 'one'} came after "
        f"the deadline and {'were' if several else 'was'} not graded"
    )


def find_labs(top: Path) -> Path:
    """The folder that holds the lab folders: `top`, a folder `labs`, or one wrapper folder around either.

    Raises:
        Refused: there are none, or in several places.
    """
    if (found := _labs_at(top)) is not None:
        return found
    inner = [path for path in _folders(top) if path.name not in copying.LEFT_BEHIND and path.name != "__MACOSX"]
    places = [(path, labs) for path in inner if (labs := _labs_at(path)) is not None]
    if len(places) == 1:
        return places[0][1]
    if places:
        names = ", ".join(repr(path.name) for path, _ in places)
        raise Refused(f"holds labs in several folders, {names}; hand in one of them")
    raise Refused(
        f"holds no lab, {_instead(top)}: hand in the lab's folder, as lab1_gpu_basics, with all that is in it"
    )


def _instead(folder: Path) -> str:
    """What is there where a lab should be."""
    names = [repr(path.name) for path in sorted(folder.iterdir()) if path.name != "__MACOSX"]
    if not names:
        return "nothing at all"
    return f"only {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


def _labs_at(folder: Path) -> Path | None:
    for place in (folder, folder / "labs"):
        if not place.is_symlink() and any(copying.is_lab(path.name) for path in _folders(place)):
            return place
    return None


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _scanned(folder: Path) -> Iterable[copying.Entry]:
    try:
        return copying.scan(folder)
    except SubmissionError:
        return ()


def _only_archive(folder: Path) -> Path | None:
    """The one archive in a folder without labs, as learning platforms put it there."""
    if _labs_at(folder) is not None:
        return None
    found = [path for path in folder.iterdir() if archives.has_suffix(path.name) and not path.is_symlink()]
    if len(found) > 1:
        raise Refused(f"holds {len(found)} archives; hand in one with all labs")
    return found[0] if found else None
