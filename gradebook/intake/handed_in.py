"""Which submissions there are, and whose they are: in a folder, in Gradescope's export, or in a list of repositories.

| named | student | found in a roster by |
|---|---|---|
| `ada/`, `ada.zip`, `ada.git/` | ada | ada |
| as Canvas or Moodle does, see `platforms.py` | lovelaceada_123, Ada Lovelace_123 | 123; Moodle's also the name |
| `submission_409194023/`, beside Gradescope's `submission_metadata.yml` | SID, address or name | each of them |

Several files that Canvas or Moodle named alike are one submission. Notebooks and archives that nothing here unpacks are
submissions, too, to be refused with a reason; what else lies there is `passed_over`.

A list is a CSV file with the columns `student` and `repository` (an address or a path), and perhaps `commit`; or a TOML
file with `[[submission]]` tables of the same keys.
"""

from __future__ import annotations

import csv
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gradebook import text_files
from gradebook.intake import archives, not_counted, pieces, platforms
from gradebook.intake.repositories import is_repository, shown
from gradebook.roster import Entry, Outsider, Roster
from gradebox.common import reading
from gradebox.common.texts import printable
from gradebox.sandbox import copying


class IntakeError(ValueError):
    """There is nothing to grade; the message is one line that says what to do."""


@dataclass(frozen=True)
class Person:
    """One of those whose submission it is."""

    key: str
    handles: tuple[str, ...]
    """What a roster may know them by."""
    name: str = ""
    """That of the student or group, as Canvas and Moodle write it into names of files."""


@dataclass(frozen=True, kw_only=True)
class HandedIn:
    """One thing that was handed in, as it was found."""

    people: tuple[Person, ...]
    """At least one; several of a group, where the platform names them."""
    label: str
    kind: Literal["folder", "archive", "file", "text", "link", "repository"]
    path: Path | None = None
    address: str | None = None
    rev: str | None = None
    """The commit, tag or branch that a list names."""
    platform: str = ""
    """Which learning platform named it: things of one key are then one submission."""
    name: str = ""
    """What the student called it, where the platform says so."""
    late: bool = False
    """Whether the platform marked it as late."""
    submitted_at: datetime | None = None

    @property
    def key(self) -> str:
        return self.people[0].key


def find(source: Path) -> list[HandedIn]:
    """All submissions in a folder or a list.

    Raises:
        IntakeError: there is no such folder or list, it holds none, or the list is not understood.
    """
    if source.is_dir():
        source = _export(source) or source
        if any(copying.is_lab(path.name) for path in source.iterdir()):
            raise IntakeError(f"{source} is one submission; name the folder above it, or use gpulabs grade {source}")
        known = {submission.path: submission for submission in _of_gradescope(source)}
        things = [
            submission for path in sorted(source.iterdir()) if (submission := known.get(path) or _at(path)) is not None
        ]
        if not things:
            raise IntakeError(f"{source} holds no submissions: no folders, zip or tar files, or git repositories")
        return things
    if source.is_file() and source.suffix in (".csv", ".toml"):
        return _listed(source)
    raise IntakeError(f"there are no submissions at {source}; name a folder of them, or a .csv or .toml list")


def passed_over(source: Path) -> list[str]:
    """What lies among the submissions and is none, by name, so that a person can look; without what systems hide."""
    if not source.is_dir():
        return []
    source = _export(source) or source
    paths = [path for path in sorted(source.iterdir()) if not _is_hidden(path) and _at(path) is None]
    words = [
        f"{printable(path.name, lines=False)}{' (a link)' if path.is_symlink() else ''}"
        for path in paths
        if path.name != platforms.EXPORT_FILE
    ]
    for exported in _exported(source):
        if not (source / exported.folder).is_dir():
            names = ", ".join(submitter.key for submitter in exported.submitters) or "nobody"
            what = printable(exported.folder, lines=False)
            words.append(f"{what} of {names} (in {platforms.EXPORT_FILE}, but not there)")
    return words


def newest(path: Path) -> datetime | None:
    """When the newest file at or below `path` was changed; folders that no lab needs do not count."""
    files = [path]
    if path.is_dir():
        files = []
        for folder, inner, names in os.walk(path):
            inner[:] = [name for name in inner if name not in copying.LEFT_BEHIND]
            files += [Path(folder, name) for name in names]
    times = [file.lstat().st_mtime_ns for file in files]
    return datetime.fromtimestamp(max(times) // 10**9, UTC) if times else None


def is_named_by_a_platform(folder: Path) -> bool:
    """Whether a folder's own name says whose it is, so that the names in it are the student's to choose."""
    return platforms.mark(folder.name) is not None


def _is_hidden(path: Path) -> bool:
    return path.name.startswith((".", "__MACOSX"))


def _at(path: Path) -> HandedIn | None:
    """What this entry of the folder is; None for what is no submission, such as a grading sheet."""
    if _is_hidden(path) or path.is_symlink():
        return None
    stem = archives.stem(path.name)
    mark = platforms.mark(path.name) or (platforms.mark(stem) if stem != path.name else None)
    name, is_folder = path.name, path.is_dir()
    kind: Literal["folder", "archive", "file", "text", "link", "repository"]
    if mark is not None and mark.kind != "file":
        kind = mark.kind
    elif is_folder and is_repository(path):
        kind, name = "repository", path.name.removesuffix(".git")
    elif is_folder or mark is not None:
        kind = pieces.kind_of(path)
    elif archives.has_suffix(path.name):
        kind, name = "archive", stem
    elif path.suffix.lower() in (*not_counted.OTHER_ARCHIVES, not_counted.NOTEBOOK):
        kind, name = "file", path.stem
    else:
        return None
    # From here on these are words for people and for the gradebook, which takes no lone surrogates.
    key = printable(mark.key if mark else name, lines=False)
    person = Person(key, mark.handles if mark else (name,), mark.whose if mark else "")
    return HandedIn(
        people=(person,),
        label=printable(path.name, lines=False),
        kind=kind,
        path=path,
        platform=mark.platform if mark else "",
        name=mark.name if mark else "",
        late=mark is not None and mark.late,
    )


def _export(source: Path) -> Path | None:
    """The folder of Gradescope's export, where it is the only thing in `source`."""
    inner = [path for path in source.iterdir() if not _is_hidden(path)]
    return inner[0] if len(inner) == 1 and (inner[0] / platforms.EXPORT_FILE).is_file() else None


def _exported(source: Path) -> tuple[platforms.Exported, ...]:
    file = source / platforms.EXPORT_FILE
    try:
        return platforms.load_export(file) if file.is_file() else ()
    except platforms.ExportError as error:
        raise IntakeError(str(error)) from None


def _of_gradescope(source: Path) -> Iterator[HandedIn]:
    for exported in _exported(source):
        path = source / exported.folder
        if path.parent == source and path.is_dir() and not path.is_symlink():
            people = tuple(Person(submitter.key, submitter.handles) for submitter in exported.submitters)
            yield HandedIn(
                people=people or (Person(printable(exported.folder, lines=False), ()),),
                label=printable(exported.folder, lines=False),
                kind="folder",
                path=path,
                platform="Gradescope",
                submitted_at=exported.created_at,
            )


@dataclass(frozen=True)
class _Row:
    student: str = ""
    repository: str = ""
    commit: str = ""


@dataclass(frozen=True)
class _File:
    submission: tuple[_Row, ...] = ()


_FIELDS = tuple(field.name for field in fields(_Row))


def _listed(file: Path) -> list[HandedIn]:
    try:
        text = text_files.read_csv_text(file)
        if file.suffix == ".toml":
            rows = [vars(row) for row in reading.into(_File, reading.toml(file, text)).submission]
        else:
            rows = [{name: str(row.get(name) or "") for name in _FIELDS} for row in csv.DictReader(text.splitlines())]
    except reading.ReadingError as error:
        raise IntakeError(str(error)) from None
    except OSError as error:
        raise IntakeError(f"{file} cannot be read: {error.strerror}") from None
    except text_files.EncodingError as error:
        raise IntakeError(str(error)) from None
    except csv.Error as error:
        raise IntakeError(f"{file} cannot be read as {file.suffix[1:]}: {error}") from None
    by_student: dict[str, HandedIn] = {}
    for number, row in enumerate(rows, start=1):
        values = {name: row[name].strip() for name in _FIELDS}
        student, address = values["student"], values["repository"]
        if not student or not address:
            raise IntakeError(f"{file}, submission {number}: name its student and its repository")
        if student in by_student:
            raise IntakeError(f"{file}, submission {number}: {student} stands twice; keep one")
        if "://" not in address and (beside := file.parent / address).exists():
            address = str(beside.resolve())
        by_student[student] = HandedIn(
            people=(Person(student, (student,)),), label=shown(address), kind="repository", address=address,
            rev=values["commit"] or None,
        )  # fmt: skip
    if not by_student:
        raise IntakeError(f"{file} lists no submissions")
    return list(by_student.values())


_WORD = re.compile(r"\w+")
_ACCENT = re.compile("[\u0300-\u036f]")
_SPELT_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe"})


def have_a_word_in_common(name: str, other: str) -> bool:
    """Whether a word of the name `other` stands in `name`, however its accents and umlauts are written."""
    words = {word for form in _without_accents(other) for word in _WORD.findall(form)}
    return any(word in form for form in _without_accents(name) for word in words)


def _without_accents(name: str) -> tuple[str, str]:
    """The name without accents, and with ä, ö, ü, å and ø as Germans and Danes write them where these lack."""
    composed = unicodedata.normalize("NFC", name).casefold()
    forms = (composed, composed.translate(_SPELT_OUT))
    first, second = (unicodedata.normalize("NFKD", form) for form in forms)
    return _ACCENT.sub("", first), _ACCENT.sub("", second)


# --- whose they are ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Theirs:
    """Something that was handed in, as that of one of those whose it is."""

    person: Person
    handed_in: HandedIn


class Owners:
    """Those of one class."""

    def __init__(self, roster: Roster | None) -> None:
        """Without a roster everything belongs to who is named on it."""
        self._roster = roster
        self.notices: list[str] = []
        """What an instructor should look at; of several attachments the same more than once."""
        if roster is not None and (column := roster.unused_teams):
            self.notices.append(
                f"the roster has a column {column!r}, which nothing here reads: if it says who works together, name "
                "the file with teams in class.toml, too"
            )

    def of_students(self, things: Sequence[HandedIn]) -> list[HandedIn]:
        """What is handed in by students; of what staff and test students handed in, a notice each."""
        if self._roster is None:
            return list(things)
        kept: list[HandedIn] = []
        labels: dict[Outsider, list[str]] = {outsider: [] for outsider in self._roster.outsiders if outsider.announced}
        for submission in things:
            outside = {person: self._roster.outsider(person.handles) for person in submission.people}
            people = tuple(person for person, outsider in outside.items() if outsider is None)
            if people:
                kept.append(replace(submission, people=people) if len(people) < len(submission.people) else submission)
                continue
            for outsider in dict.fromkeys(outside.values()):
                if outsider is not None:
                    labels.setdefault(outsider, []).append(submission.label)
        for outsider, theirs in labels.items():
            verb = "are" if len(theirs) > 1 else "is"
            what = f"{', '.join(theirs) or 'it'} {verb} left out"
            self.notices.append(printable(f"{outsider.why}: {what}", lines=False))
        return kept

    def keys(self, person: Person, platform: str) -> list[str]:
        """The keys of those whose it is; what it calls itself where nobody knows."""
        if self._roster is None:
            return [person.key]
        owners = self._roster.owners(person.handles)
        entry = None if self._roster.team(person.handles) else self._roster.find(person.handles)
        if entry is not None and self._is_a_groups(person, entry, platform):
            owners = []
        elif not owners and (several := self._roster.several(person.handles)):
            keys = ", ".join(printable(repr(namesake.student), lines=False) for namesake in several)
            self.notices.append(
                f"{person.key}: several students have this name ({keys}), so that it is nobody's: rename it to the one "
                "whose it is"
            )
        return [owner.student for owner in owners] or [person.key]

    def _is_a_groups(self, person: Person, entry: Entry, platform: str) -> bool:
        """Whether it is that of a group which only has the number of this student."""
        if not person.name or not entry.name or have_a_word_in_common(person.name, entry.name):
            return False
        if platform == "Moodle":
            # It numbers groups as it numbers students.
            owner, called = (printable(text, lines=False) for text in (entry.student, entry.name))
            self.notices.append(
                f"{person.key}: its number is {owner}'s in the roster, who has another name there ({called}); "
                f"it is taken for a group's, and is nobody's: rename it to {owner!r} if it is theirs, or say who "
                "is in the group with teams in class.toml"
            )
            return True
        if platform == "Canvas" and not entry.team:
            name = printable(person.name, lines=False)
            self.notices.append(
                f"{entry.student} handed in as {name!r}; if that is a group, say who is in it: name a list "
                "with teams in class.toml"
            )
        return False

    def set_apart_namesakes(self, by_key: dict[str, list[Theirs]]) -> None:
        """What only calls itself by a student's name does not stand beside what has that student's identifier.

        It becomes a submission that matches nobody, for a person to look at.
        """
        if self._roster is None:
            return
        for key, ones in list(by_key.items()):
            sure = [owned for owned in ones if self._roster.identifies(owned.person.handles)]
            known = {entry.student for owned in sure if (entry := self._roster.find(owned.person.handles))}
            apart = [owned for owned in ones if owned not in sure and self._is_of(owned, known)]
            if apart:
                by_key[key] = [owned for owned in ones if owned not in apart]
                for owned in apart:
                    by_key.setdefault(owned.person.key, []).append(owned)

    def _is_of(self, owned: Theirs, students: set[str]) -> bool:
        entry = self._roster.find(owned.person.handles) if self._roster else None
        return entry is not None and entry.student in students
