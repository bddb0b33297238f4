"""Which submissions there are, and whose they are by their names: in a folder, or in a list of repositories.

| named | student | found in a roster by |
|---|---|---|
| `ada/`, `ada.zip`, `ada.git/` | ada | ada |
| `adalovelace_123_456_labs.zip` (Canvas; `_LATE` may follow the name) | adalovelace_123 | 123, Canvas's ID |
| `Ada Lovelace_123_assignsubmission_file_labs.zip` (Moodle; also folders) | Ada Lovelace_123 | 123, the name |

A student chooses what stands behind these marks, so the first mark in a name counts and later ones are the student's.

A list is a CSV file with the columns `student` and `repository` (an address or a path), and perhaps `commit`; or a TOML
file with `[[submission]]` tables of the same keys.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from gradebook.intake import archives
from gradebook.intake.repositories import is_repository
from gradebox import reading
from gradebox.sandbox import copying
from gradebox.texts import printable

_MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>[0-9]+)_assignsubmission_(?:file|onlinetext)(?:_.*)?", re.DOTALL)
_CANVAS = re.compile(r"(?P<name>[^_]+)(?:_LATE)?_(?P<id>[0-9]+)_[0-9]+_.+", re.DOTALL)


class IntakeError(ValueError):
    """There is nothing to grade; the message is one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class HandedIn:
    """One submission as it was found."""

    key: str
    handles: tuple[str, ...]
    """What a roster may know the student by."""
    label: str
    kind: Literal["folder", "archive", "repository"]
    path: Path | None = None
    address: str | None = None
    rev: str | None = None
    """The commit, tag or branch that a list names."""


def find(source: Path) -> list[HandedIn]:
    """All submissions in a folder or a list.

    Raises:
        IntakeError: there is no such folder or list, it holds none, or the list is not understood.
    """
    if source.is_dir():
        if any(copying.is_lab(path.name) for path in source.iterdir()):
            raise IntakeError(f"{source} is one submission; name the folder above it, or use gpulabs grade {source}")
        found = [one for path in sorted(source.iterdir()) if (one := _at(path)) is not None]
        if not found:
            raise IntakeError(f"{source} holds no submissions: no folders, zip or tar files, or git repositories")
        return found
    if source.is_file() and source.suffix in (".csv", ".toml"):
        return _listed(source)
    raise IntakeError(f"there are no submissions at {source}; name a folder of them, or a .csv or .toml list")


def _at(path: Path) -> HandedIn | None:
    """What this entry of the folder is; None for what is no submission, such as a grading sheet."""
    if path.name.startswith((".", "__MACOSX")) or path.is_symlink():
        return None
    name = archives.stem(path.name)
    by_name = whose(path.name) or whose(name)
    if path.is_dir():
        kind: Literal["folder", "archive", "repository"] = "repository" if is_repository(path) else "folder"
        name = path.name.removesuffix(".git")
        by_name = whose(path.name)
    elif archives.has_suffix(path.name) or by_name is not None:
        kind = "archive"
    else:
        return None
    key, handles = by_name or (name, (name,))
    # From here on these are words for people and for the gradebook, which takes no lone surrogates.
    key, label = printable(key, lines=False), printable(path.name, lines=False)
    return HandedIn(key=key, handles=handles, label=label, kind=kind, path=path)


def whose(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Key and handles by the name that a learning platform gives; None where none did."""
    if found := _CANVAS.fullmatch(name):  # its mark stands at the very beginning, so Moodle's would be a later one
        return f"{found['name']}_{found['id']}", (found["id"],)
    if found := _MOODLE.fullmatch(name):
        return f"{found['name']}_{found['id']}", (found["id"], found["name"])
    return None


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
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix == ".toml":
            rows = [vars(row) for row in reading.into(_File, reading.toml(file, text)).submission]
        else:
            rows = [{name: str(row.get(name) or "") for name in _FIELDS} for row in csv.DictReader(text.splitlines())]
    except reading.ReadingError as error:
        raise IntakeError(str(error)) from None
    except OSError as error:
        raise IntakeError(f"{file} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
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
            key=student, handles=(student,), label=address, kind="repository", address=address,
            rev=values["commit"] or None,
        )  # fmt: skip
    if not found:
        raise IntakeError(f"{file} lists no submissions")
    return list(found.values())
