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
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gradebook.intake import archives, csv_text, gradescope_export, pieces, platforms, unread
from gradebook.intake.repositories import is_repository, shown
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
        known = {one.path: one for one in _of_gradescope(source)}
        found = [one for path in sorted(source.iterdir()) if (one := known.get(path) or _at(path)) is not None]
        if not found:
            raise IntakeError(f"{source} holds no submissions: no folders, zip or tar files, or git repositories")
        return found
    if source.is_file() and source.suffix in (".csv", ".toml"):
        return _listed(source)
    raise IntakeError(f"there are no submissions at {source}; name a folder of them, or a .csv or .toml list")


def passed_over(source: Path) -> list[str]:
    """What lies among the submissions and is none, by name, so that a person can look; without what systems hide."""
    if not source.is_dir():
        return []
    source = _export(source) or source
    found = [path for path in sorted(source.iterdir()) if not _is_hidden(path) and _at(path) is None]
    words = [
        f"{printable(path.name, lines=False)}{' (a link)' if path.is_symlink() else ''}"
        for path in found
        if path.name != gradescope_export.FILE
    ]
    for one in _exported(source):
        if not (source / one.folder).is_dir():
            names = ", ".join(submitter.key for submitter in one.submitters) or "nobody"
            what = printable(one.folder, lines=False)
            words.append(f"{what} of {names} (in {gradescope_export.FILE}, but not there)")
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
    elif path.suffix.lower() in (*unread.OTHER_ARCHIVES, unread.NOTEBOOK):
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
    return inner[0] if len(inner) == 1 and (inner[0] / gradescope_export.FILE).is_file() else None


def _exported(source: Path) -> tuple[gradescope_export.Exported, ...]:
    file = source / gradescope_export.FILE
    try:
        return gradescope_export.load(file) if file.is_file() else ()
    except gradescope_export.ExportError as error:
        raise IntakeError(str(error)) from None


def _of_gradescope(source: Path) -> Iterator[HandedIn]:
    for one in _exported(source):
        path = source / one.folder
        if path.parent == source and path.is_dir() and not path.is_symlink():
            people = tuple(Person(submitter.key, submitter.handles) for submitter in one.submitters)
            yield HandedIn(
                people=people or (Person(printable(one.folder, lines=False), ()),),
                label=printable(one.folder, lines=False),
                kind="folder",
                path=path,
                platform="Gradescope",
                submitted_at=one.created_at,
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
        text = csv_text.read(file)
        if file.suffix == ".toml":
            rows = [vars(row) for row in reading.into(_File, reading.toml(file, text)).submission]
        else:
            rows = [{name: str(row.get(name) or "") for name in _FIELDS} for row in csv.DictReader(text.splitlines())]
    except reading.ReadingError as error:
        raise IntakeError(str(error)) from None
    except OSError as error:
        raise IntakeError(f"{file} cannot be read: {error.strerror}") from None
    except csv_text.EncodingError as error:
        raise IntakeError(str(error)) from None
    except csv.Error as error:
        raise IntakeError(f"{file} cannot be read as {file.suffix[1:]}: {error}") from None
    found: dict[str, HandedIn] = {}
    for number, row in enumerate(rows, start=1):
        values = {name: row[name].strip() for name in _FIELDS}
        student, address = values["student"], values["repository"]
        if not student or not address:
            raise IntakeError(f"{file}, submission {number}: name its student and its repository")
        if student in found:
            raise IntakeError(f"{file}, submission {number}: {student} stands twice; keep one")
        if "://" not in address and (beside := file.parent / address).exists():
            address = str(beside.resolve())
        found[student] = HandedIn(
            people=(Person(student, (student,)),), label=shown(address), kind="repository", address=address,
            rev=values["commit"] or None,
        )  # fmt: skip
    if not found:
        raise IntakeError(f"{file} lists no submissions")
    return list(found.values())
