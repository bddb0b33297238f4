"""Which submissions there are, and whose they are: in a folder, in Gradescope's export, or in a list of repositories.

| named | student | found in a roster by |
|---|---|---|
| `ada/`, `ada.zip`, `ada.git/` | ada | ada |
| as Canvas or Moodle does, see `platforms.py` | lovelaceada_123, Ada Lovelace_123 | 123; Moodle's also the name |
| as Blackboard or Brightspace does, see there | Lab 1_al001, Ada Lovelace_123 | the login; the name |
| `submission_409194023/`, next to Gradescope's `submission_metadata.yml` | SID, address or name | each of them |

Several files that Canvas or Moodle named alike are one submission. Notebooks and archives that nothing here unpacks are
submissions, too, to be refused with a reason; what else lies there is `passed_over`.

A list is a CSV file with the columns `student` and `repository` (an address or a path), and perhaps `commit`; or a TOML
file with `[[submission]]` tables of the same keys.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Literal

from gradebook import column_titles, csv_tables, spelt_names
from gradebook.intake import lab_folders, moments, not_counted, pieces, platforms, zip_and_tar
from gradebook.intake.repositories import is_repository, shown
from gradebook.roster import KEYS, TEAM_COLUMNS
from gradebook.text_files import of_windows, some
from gradebox.common import reading
from gradebox.common.texts import printable
from gradebox.sandbox import copying


class IntakeError(ValueError):
    """There is nothing to grade; the message is one line that says what to do."""


_FIRST_SECOND = 978307200
"""Of the year 2001."""
_UNFINISHED = (".crdownload", ".part", ".partial", ".download", ".opdownload")
"""Suffixes of what a browser has not downloaded to its end."""
_IN_A_CLOUD = re.compile(r"\.(?P<name>.+)\.icloud")
"""What macOS puts in the place of a file that is still in iCloud."""
_LINK = " (a link)"


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
    kind: Literal["folder", "archive", "file", "text", "link", "empty", "repository", "lacking", "nameless"]
    """`lacking`: a platform's list has it, and its download has not; `nameless`: a file whose name it has not kept."""
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
    attempt: str = ""
    """Of which attempt it is, in the order of time, where a platform keeps them all."""

    @property
    def key(self) -> str:
        return self.people[0].key


def find(source: Path, zone: tzinfo | None = None, name: Path | None = None) -> list[HandedIn]:
    """All submissions in a folder or a list; of several attempts the last. `zone` is that of a platform's moments.

    `name` is what people call the source, if it is an archive that was unpacked into another folder.

    Raises:
        IntakeError: there is no such folder or list, it holds none, or the list is not understood.
    """
    if source.is_dir():
        source = _export(source) or source
        name = name or source
        if lab_folders.is_one_submission(source):
            what = "put it into a folder with the others" if name.is_file() else "name the folder above it"
            raise IntakeError(f"{name} is one submission; {what}, or grade {name} alone")
        known = {submission.path: submission for submission in _of_gradescope(source)}
        paths = sorted(source.iterdir())
        things = _latest([thing for path in paths if (thing := known.get(path) or _at(path, zone)) is not None])
        things += [thing for thing in known.values() if thing.kind == "lacking"]
        if not things:
            there = f", only {some([repr(other) for other in others], 3)}" if (others := passed_over(source)) else ""
            raise IntakeError(
                f"{name} holds no submissions: no folders, zip or tar files, or git repositories{there}. Put what each "
                "student handed in into a folder that is called as the student is in the roster"
            )
        return things
    if source.is_file() and source.suffix.lower() in (".csv", ".toml"):
        return _listed(source)
    if source.suffix.lower() in _UNFINISHED:
        raise IntakeError(f"{source} is not downloaded to its end: wait for the browser, or download it again")
    raise IntakeError(
        f"there are no submissions at {source}; name a folder of them, an archive, or a .csv or .toml list"
        f"{of_windows(source)}"
    )


def earlier_attempts(source: Path, zone: tzinfo | None = None) -> list[HandedIn]:
    """The attempts that do not count because a later one does, where a platform keeps them all."""
    if not source.is_dir():
        return []
    things = [thing for path in sorted(source.iterdir()) if (thing := _at(path, zone)) is not None]
    latest = _latest(things)
    return [thing for thing in things if thing not in latest]


def passed_over(source: Path) -> list[str]:
    """What lies among the submissions and is none, by name, so that a person can look; without what systems hide."""
    if not source.is_dir():
        return []
    source = _export(source) or source
    things = {path: _at(path) for path in sorted(source.iterdir())}
    latest = _latest([thing for thing in things.values() if thing])
    others = [path for path, thing in things.items() if thing is None and not _is_info(path)]
    paths = [path for path in others if not _is_hidden(path) or _IN_A_CLOUD.fullmatch(path.name)]
    words = [f"{thing.label} (an earlier attempt)" for thing in things.values() if thing and thing not in latest]
    words += [
        f"{printable(path.name, lines=False)}{_LINK if path.is_symlink() else ''}"
        for path in paths
        if path.name != platforms.EXPORT_FILE
    ]
    return words


def not_here(name: str) -> tuple[str, str]:
    """What something that was `passed_over` stands for, and why that is not here itself; two empty texts if it is."""
    if (place := name.removesuffix(_LINK)) != name:
        return place, f"{place!r} is a link, and links are not followed: put the folder or file itself there"
    if match := _IN_A_CLOUD.fullmatch(name):
        return match["name"], f"{match['name']!r} is in iCloud, and not on this machine: download it there first"
    path = Path(name)
    if path.suffix.lower() in _UNFINISHED:
        return path.stem, f"{name!r} is not downloaded to its end: wait for the browser, or download it again"
    if path.suffix.lower() in not_counted.SHORTCUTS:
        return path.stem, f"{name!r} is a shortcut, without the work itself: get it from where the shortcut leads"
    return "", ""


def newest(path: Path) -> datetime | None:
    """When the newest file at or below `path` was changed; None where no time is one of work that was handed in.

    Folders that no lab needs do not count. Programs write 1970 and 1980 where they know no time.
    """
    files = [path]
    if path.is_dir():
        files = []
        for folder, inner, names in os.walk(path):
            inner[:] = [name for name in inner if name not in copying.LEFT_BEHIND]
            files += [Path(folder, name) for name in names]
    tomorrow = time.time() + 24 * 60 * 60
    times = [file.lstat().st_mtime_ns // 10**9 for file in files]
    real = [moment for moment in times if _FIRST_SECOND < moment < tomorrow]
    return datetime.fromtimestamp(max(real), UTC) if real else None


def is_named_by_a_platform(folder: Path) -> bool:
    """Whether a folder's own name says whose it is, so that the names in it are the student's to choose."""
    return platforms.mark(folder.name) is not None


def _latest(things: Sequence[HandedIn]) -> list[HandedIn]:
    """Without the attempts that a later one has replaced, where a platform keeps them all."""
    newest: dict[tuple[str, str], str] = {}
    for thing in things:
        if thing.attempt:
            key = (thing.platform, thing.key)
            newest[key] = max(newest.get(key, ""), thing.attempt)
    return [thing for thing in things if thing.attempt == newest.get((thing.platform, thing.key), thing.attempt)]


def _is_info(path: Path) -> bool:
    """Whether a platform wrote it about a submission, and no text of the student's is in it."""
    mark = platforms.mark(path.name)
    index = path.name == "index.html" and any(platforms.mark(other.name) for other in path.parent.iterdir())
    return index or (mark is not None and mark.kind == "info")


def _is_hidden(path: Path) -> bool:
    return path.name.startswith((".", "__MACOSX"))


def _at(path: Path, zone: tzinfo | None = None) -> HandedIn | None:
    """What this entry of the folder is; None for what is no submission, such as a grading sheet."""
    if _is_hidden(path) or path.is_symlink():
        return None
    stem = zip_and_tar.stem(path.name)
    mark = platforms.mark(path.name) or (platforms.mark(stem) if stem != path.name else None)
    name, is_folder = path.name, path.is_dir()
    kind: Literal["folder", "archive", "file", "text", "link", "empty", "repository", "nameless"]
    if mark is not None and mark.kind == "info":
        is_alone = not any(other.name.startswith(f"{path.stem}_") for other in path.parent.iterdir())
        if not platforms.typed_text(path) and not is_alone:
            return None
        kind = "text" if platforms.typed_text(path) else "empty"
    elif mark is not None and (mark.kind == "text" or mark.kind == "link"):
        kind = mark.kind
    elif is_folder and is_repository(path):
        kind, name = "repository", path.name.removesuffix(".git")
    elif is_folder or mark is not None:
        kind, name = pieces.kind_of(path), stem  # some programs unpack `ada.zip` into a folder of that name
        if kind == "file" and mark is not None and mark.platform == "A+":
            kind = "nameless"
    elif zip_and_tar.has_suffix(path.name):
        kind, name = "archive", stem
    elif not path.suffix and path.is_file() and pieces.kind_of(path) == "archive":
        kind = "archive"  # whose suffix some program has taken away
    elif path.suffix.lower() in (*not_counted.OTHER_ARCHIVES, not_counted.NOTEBOOK):
        kind, name = "file", path.stem.removesuffix(".tar")
    else:
        return None
    # From here on these are words for people and for the gradebook, which takes no lone surrogates.
    key = printable(mark.key if mark else name, lines=False)
    on_blackboard = platforms.blackboard_person(path) if mark is not None and mark.platform == "Blackboard" else ()
    handles = on_blackboard or (mark.handles if mark else spelt_names.of_file(name))
    person = Person(key, handles, mark.whose if mark else "")
    when = mark.when if mark else platforms.sakai_moment(path)
    members = tuple(Person(member, (member,)) for member in (mark.members if mark else ()))
    return HandedIn(
        people=members or (person,),
        label=printable(path.name, lines=False),
        kind=kind,
        path=path,
        platform=mark.platform if mark else "",
        name=mark.name if mark else "",
        late=mark is not None and mark.late,
        attempt=_attempt(mark) if mark else "",
        submitted_at=moments.parse(when, UTC if mark is None else zone) if when else None,
    )


def _attempt(mark: platforms.Mark) -> str:
    """Which of several attempts it is, for comparison: by its number, else by its moment."""
    if mark.version:
        return mark.version.zfill(20)
    moment = moments.parse(mark.when, UTC)
    return f"{moment:%Y%m%d%H%M%S}" if moment else ""


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
        is_there = path.is_dir() and not path.is_symlink()
        if path.parent == source and (is_there or (exported.submitters and not path.exists())):
            people = tuple(Person(submitter.key, submitter.handles) for submitter in exported.submitters)
            yield HandedIn(
                people=people or (Person(printable(exported.folder, lines=False), ()),),
                label=printable(exported.folder, lines=False),
                kind="folder" if is_there else "lacking",
                path=path,
                platform="Gradescope",
                submitted_at=exported.created_at,
            )


_PAGE = re.compile(
    r"(https?://[^/\s]+/[^/\s]+/[^/\s]+?)(?:\.git)?/(?:-/)?(tree|blob|commit|commits|pull|src)(?:/(.*))?"
)
"""The address that a browser shows of a folder or file in a repository, on GitHub or GitLab."""
_CLONE = re.compile(r"(?:git|gh repo) clone\s+(\S+).*")


def _no_address(text: str) -> str:
    """Why this is no address of a repository, and what to write; empty if it may be one."""
    if match := _CLONE.fullmatch(text):
        return f"is a command; write the address alone: {shown(match[1])}"
    if match := _PAGE.fullmatch(text):
        what = f", and {match[3]!r} into the column commit" if match[2] == "tree" and match[3] else ""
        return f"is a page of the web; write the repository's address, {shown(match[1])}{what}"
    return "has spaces in it; write one address alone" if re.match(r"(https?://|ssh://|git@)\S* ", text) else ""


@dataclass(frozen=True)
class _Row:
    student: str = ""
    repository: str = ""
    commit: str = ""


@dataclass(frozen=True)
class _File:
    submission: tuple[_Row, ...] = ()


_UNREAD = ("branch", "ref", "tag", "sha", "revision", "commit_sha", "commit_id")
"""Titles of columns that people would take for what `commit` is."""
_FIELDS = tuple(field.name for field in fields(_Row))


_ADDRESSED = ("student_repository_url", "clone_url", "repository_url", "repo", "url")
"""Titles of addresses, the first in the tables of GitHub's program for classrooms."""


def _meant(titles: Sequence[str]) -> dict[str, str]:
    """By each title of a list what it means: a list may name students by any column of a roster, or teams."""
    meant = column_titles.as_known(titles, _FIELDS)
    known = column_titles.as_known(titles)
    if "repository" not in meant.values():
        meant |= dict.fromkeys([name for name in titles if name.casefold() in _ADDRESSED][:1], "repository")
    who = next((title for name in (*KEYS, *TEAM_COLUMNS) for title in titles if known[title] == name), None)
    return meant if who is None or "student" in meant.values() else {**meant, who: "student"}


def _listed(file: Path) -> list[HandedIn]:
    try:
        if file.suffix.lower() == ".toml":
            listed = [vars(row) for row in reading.into(_File, reading.toml(file)).submission]
            rows = [(f"submission {number}", row) for number, row in enumerate(listed, start=1)]
        else:
            table = csv_tables.read(file)
            meant = _meant(table.titles)
            if lacking := [name for name in ("student", "repository") if name not in meant.values()]:
                raise IntakeError(
                    f"{file} has no column {lacking[0]!r} in its first line, which has the titles; a list of "
                    "repositories needs student and repository. If it says who is in the class, name it with --roster, "
                    "and the folder of submissions instead of it"
                )
            if unread := next((title for title in table.titles if title.casefold() in _UNREAD), None):
                raise IntakeError(
                    f"{file} has a column {unread!r}, which nothing reads: if it says what to grade, call it commit, "
                    "which may be a commit, a tag or a branch; else remove it"
                )
            if said := column_titles.misspelt(meant.values(), ("commit",)):
                raise IntakeError(f"{file} {said}")
            rows = [
                (f"line {row.line}", dict.fromkeys(_FIELDS, "") | column_titles.renamed(row.cells, meant))
                for row in table.rows
            ]
    except (reading.ReadingError, csv_tables.TableError) as error:
        raise IntakeError(str(error)) from None
    by_student: dict[str, HandedIn] = {}
    for place, row in rows:
        values = {name: row[name].strip() for name in _FIELDS}
        student, address = values["student"], values["repository"]
        if not student:
            raise IntakeError(f"{file}, {place}: name its student and its repository")
        if not address:
            raise IntakeError(
                f"{file}, {place}: {student} has no repository; write its address, or remove the row: who is in the "
                "roster and not in the list has handed in nothing"
            )
        if student in by_student:
            raise IntakeError(f"{file}, {place}: {student} stands twice; keep one")
        if "://" not in address and (beside := file.parent / address).exists():
            address = str(beside.resolve())
        elif why := _no_address(address):
            raise IntakeError(f"{file}, {place}: {shown(address)!r} {why}")
        by_student[student] = HandedIn(
            people=(Person(student, (student,)),), label=shown(address), kind="repository", address=address,
            rev=values["commit"] or None,
        )  # fmt: skip
    if not by_student:
        raise IntakeError(f"{file} lists no submissions")
    return list(by_student.values())
