"""Who is in the class: a CSV file as Canvas, Moodle, a classroom on GitHub or an instructor's own hand writes it.

The first line names the columns. The first of `KEYS` that is there is the students' key: it names them in the
gradebook; who has nothing in it is named by the next one. Every column of `KEYS` may match a submission. All columns
are kept as they were read, for exports.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from gradebook.intake import csv_text, teams
from gradebook.settings import SettingsError, parse_moment

KEYS = (
    *("student", "SIS Login ID", "SIS User ID", "Identifier", "Username", "Email address", "Email", "ID number"),
    *("ID", "SID", "username", "github_username", "identifier", "email"),
)
_LOGINS = ("username", "github_username")
"""Names on GitHub: Classroom 50's `roster.csv`, formerly `students.csv`, has username, first_name, last_name, email,
section, github_id and perhaps role (its `Web-Teacher-Guide.md`, read in November 2026; who was invited by address has
no username yet); GitHub Classroom's `classroom_roster.csv` had identifier, github_username, github_id and name.
Both name repositories CLASSROOM-ASSIGNMENT-LOGIN or ASSIGNMENT-LOGIN."""
_ROLE, _STUDENT = "role", "student"
"""It says who is staff where there is a column of logins, too: in a list of one's own it may mean roles in a team."""
_TEST_STUDENTS = ("student, test", "test student")
_TEST_LOGIN = re.compile(r"([0-9a-f]{32,64})?")
"""Canvas makes a Test Student for the Student View of each course and exports it with the others: without a SIS ID, and
with a hash for a login (an HMAC in its `Course#student_view_student`). A student of that name has a login of their own.
"""
_NAMES = ("name", "Student", "full name", "display name")
_PARTS = (("first name", "last name"), ("first name", "surname"), ("first_name", "last_name"))
_SUBMITTED_AT = "submitted_at"
_CANVAS_SIS = ("SIS Login ID", "SIS User ID")
_PARTICIPANT = "participant "


class PlatformId(str):
    """What a platform wrote into a name, and nobody else."""

    __slots__ = ()


class CanvasId(PlatformId):
    """One of Canvas: in its own roster it stands in the column ID and in no other, where logins may be numbers."""

    __slots__ = ()


class CanvasGroup(PlatformId):
    """What may be the name of a group as Canvas spells it: small, without what is neither a letter nor a digit."""

    __slots__ = ()


class MoodleId(PlatformId):
    """One of Moodle: in its own worksheet it stands in the column Identifier and in no other."""

    __slots__ = ()


class RosterError(ValueError):
    """The roster cannot be used; the message is one line that says what to do."""


@dataclass(frozen=True)
class Entry:
    """One student of the roster."""

    student: str
    name: str
    columns: Mapping[str, str]
    submitted_at: datetime | None
    team: str = ""
    """Who works together has the same one; empty where somebody works alone."""


@dataclass(frozen=True)
class Outsider:
    """Somebody who stands in the roster and is no student of the class."""

    handles: tuple[str, ...]
    why: str
    """Who they are, as the beginning of a sentence."""
    login: str = ""
    """Their name on GitHub."""
    told: bool = False
    """Whether to say so even where nothing of theirs was handed in."""


class Roster:
    """The students of a class, to be found by any of their identifiers."""

    def __init__(
        self, entries: Iterable[Entry], strangers: Iterable[str] = (), outsiders: Iterable[Outsider] = ()
    ) -> None:
        """`strangers` stand in a list of teams, and not in the roster; `outsiders` in it, and not in the class."""
        self.entries = tuple(entries)
        self.strangers = tuple(strangers)
        self.outsiders = tuple(outsiders)
        self._teams: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.team:
                self._teams.setdefault(_folded_name(entry.team), []).append(entry)
        self._by_identifier: dict[str, Entry] = {}
        for column in KEYS:
            for entry in self.entries:
                handle = _folded(_cell(entry.columns, column))
                if handle:
                    self._by_identifier.setdefault(handle, entry)
                    # Moodle's worksheet says "Participant 12345" where its archives say 12345.
                    self._by_identifier.setdefault(handle.removeprefix(_PARTICIPANT), entry)
        self._by_name: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.name:
                self._by_name.setdefault(_folded_name(entry.name), []).append(entry)
        self._of_platform = {CanvasId: _canvas_ids(self.entries), MoodleId: _moodle_ids(self.entries)}
        self._by_login = {
            _folded(login): entry for entry in self.entries for name in _LOGINS if (login := _cell(entry.columns, name))
        }
        self._outside = {_folded(handle): one for one in self.outsiders for handle in one.handles}
        self._outside_logins = {_folded(one.login): one for one in self.outsiders if one.login}

    def find(self, handles: Iterable[str]) -> Entry | None:
        """The student with one of these identifiers, the first that is known."""
        handles = list(handles)
        known = next((entry for one in handles if (entry := self._known(one)) is not None), None)
        return known or next((entry for one in handles if (entry := self._owner(_folded(one))) is not None), None)

    @property
    def unused_teams(self) -> str | None:
        """A column of the roster that may say who works together, where nobody is in a team."""
        cells = (pair for entry in self.entries for pair in entry.columns.items())
        column = teams.column_in(name for name, cell in cells if teams.is_team(cell))
        return None if self._teams else column

    def _known(self, handle: str) -> Entry | None:
        named = self._named(handle)
        return self._identified(handle) or (named[0] if len(named) == 1 else None)

    def _identified(self, handle: str) -> Entry | None:
        if isinstance(handle, CanvasGroup):
            return None
        of_platform = self._of_platform.get(type(handle), {})
        if handle in of_platform or (of_platform and self._is_strict(handle)):
            return of_platform.get(handle)
        return self._by_identifier.get(_folded(handle))

    def _is_strict(self, handle: str) -> bool:
        """Whether the roster is the platform's own, in which its numbers stand in one column only."""
        if isinstance(handle, CanvasId):
            return any(_cell(one.columns, name) for one in self.entries for name in _CANVAS_SIS)
        return True

    def _named(self, handle: str) -> list[Entry]:
        """Who has this name."""
        if isinstance(handle, PlatformId):
            return []
        entries = self._by_name.get(_folded_name(handle), []) or self._named_in_a_group(handle)
        exactly = [one for one in entries if _folded(one.name) == _folded(handle)]
        return exactly or entries

    def _named_in_a_group(self, handle: str) -> list[Entry]:
        """Who has the name behind that of a group, as Moodle writes `Team 1-Ada Lovelace`."""
        parts = handle.split("-")
        for place in range(1, len(parts)):
            group, name = _folded_name("-".join(parts[:place])), _folded_name("-".join(parts[place:]))
            if name in self._by_name and (group in self._teams or group in teams.DEFAULT_GROUPS):
                return self._by_name[name]
        return []

    def several(self, handles: Iterable[str]) -> list[Entry]:
        """Those whose name it is, where it cannot be known which of them is meant; else nobody."""
        handles = list(handles)
        if self.owners(handles):
            return []
        return next((entries for one in handles if len(entries := self._named(one)) > 1), [])

    def team(self, handles: Iterable[str]) -> list[Entry]:
        """The team that is called one of these; nobody where there is none."""
        for one in handles:
            if isinstance(one, CanvasGroup):
                found = next((them for them in self._teams.values() if _canvas_spelt(them[0].team) == one), [])
            else:
                found = [] if isinstance(one, PlatformId) else self._teams.get(_folded_name(one), [])
            if found:
                return found
        return []

    def owners(self, handles: Iterable[str]) -> list[Entry]:
        """Whose it is what has these identifiers: a team's by its name, else that of one student and their team.

        The team's name goes first, because platforms number groups as they number students.
        """
        handles = list(handles)
        if team := self.team(handles):
            return team
        entry = self.find(handles)
        if entry is None:
            namesakes = next((entries for one in handles if (entries := self._named(one))), [])
            in_one_team = len({_folded_name(one.team) for one in namesakes}) == 1 and bool(namesakes[0].team)
            return self._teams[_folded_name(namesakes[0].team)] if in_one_team else []
        return [entry, *(one for one in self._teams.get(_folded_name(entry.team), ()) if one is not entry)]

    def outsider(self, handles: Iterable[str]) -> Outsider | None:
        """Who has these identifiers and is no student; None where a student has one of them, or nobody."""
        handles = list(handles)
        if self.owners(handles):
            return None
        handles = [_folded(one) for one in handles]
        known = next((self._outside[one] for one in handles if one in self._outside), None)
        logins = [self._login(one) for one in handles]
        return known or next((self._outside_logins[one] for one in logins if one in self._outside_logins), None)

    def called(self, handles: Iterable[str]) -> str | None:
        """What to call whoever has one of these identifiers: the team by its name, or the student's key."""
        handles = list(handles)
        team, entry = self.team(handles), self.find(handles)
        return team[0].team if team else entry.student if entry else None

    def _owner(self, repository: str) -> Entry | None:
        """Whose repository this is by the end of its name."""
        return self._by_login.get(self._login(repository))

    def _login(self, repository: str) -> str:
        """The login at the end of a repository's name; of two that fit, the longer one; empty where none does."""
        fitting = [login for login in (*self._by_login, *self._outside_logins) if repository.endswith(f"-{login}")]
        return max(fitting, key=len, default="")

    def identifies(self, handles: Iterable[str]) -> bool:
        """Whether one of them is an identifier; a name for people is none, since anybody can give a file any name."""
        handles = list(handles)
        return bool(self.team(handles)) or any(self._identified(one) or self._owner(_folded(one)) for one in handles)

    def clash(self) -> tuple[str, str] | None:
        """A team that is called as a student is who is not in it, so that nobody knows whose a submission is."""
        keys = {_folded(one.student): one for one in self.entries}
        for members in self._teams.values():
            team = members[0].team
            called = [*self._named(team), *([keys[_folded(team)]] if _folded(team) in keys else [])]
            for entry in called:
                if entry not in members:
                    return team, entry.student
        return None


def load(path: Path, teams_file: Path | None = None) -> Roster:
    """Read a roster, and who works together: by its own column, or by another file.

    Raises:
        RosterError: one of them cannot be read or has not the columns that it needs, or names a student twice.
    """
    roster = _with_teams(path, teams_file)
    if (clash := roster.clash()) is not None:
        team, student = clash
        raise RosterError(
            f"the team {team!r} is called as the student {student} is, who is not in it: give the team another name, "
            "or nobody knows whose a submission is"
        )
    return roster


def _with_teams(path: Path, teams_file: Path | None) -> Roster:
    roster = _load(path)
    if teams_file is None:
        return roster
    if any(entry.team for entry in roster.entries):
        raise RosterError(f"both {path} and {teams_file} say who works together; keep one of them")

    def key(handles: Iterable[str]) -> str | None:
        handles = list(handles)
        if entry := roster.find(handles):
            return entry.student
        if several := roster.several(handles):
            keys = ", ".join(one.student for one in several)
            raise RosterError(
                f"{teams_file}: several students are called {several[0].name!r} ({keys}); name them there as here"
            )
        return None

    try:
        found = teams.load(teams_file, KEYS, key)
    except teams.TeamsError as error:
        raise RosterError(str(error)) from None
    entries = [replace(entry, team=found.of.get(entry.student, "")) for entry in roster.entries]
    strangers = [one for one in found.strangers if roster.outsider([one]) is None]
    return Roster(entries, strangers, roster.outsiders)


def _load(path: Path) -> Roster:
    try:
        text, line = csv_text.numbered(path)
    except OSError as error:
        raise RosterError(f"{path} cannot be read: {error.strerror}") from None
    except csv_text.EncodingError as error:
        raise RosterError(str(error)) from None
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    try:
        table = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        head = [name.strip() for name in next(table, [])]
        every = [dict(zip(head, cells, strict=False)) for cells in table if any(cells)]
    except csv.Error as error:
        raise RosterError(f"{path} is no CSV file: {error}") from None
    outsiders = {number: one for number, row in enumerate(every) if (one := _outsider(row, path)) is not None}
    rows = {line + 1 + number: row for number, row in enumerate(every) if number not in outsiders}
    key = next((name for name in KEYS if any(_cell(row, name).strip() for row in rows.values())), None)
    if key is None:
        raise RosterError(f"{path} has no column that names students; call one of them {', '.join(KEYS[:4])}, ...")
    entries: dict[str, Entry] = {}
    for number, row in rows.items():
        cells = {name: value.strip() for name, value in row.items() if name}
        student = _cell(cells, key) or next((cells[name] for name in KEYS if cells.get(name)), "")
        if not student:
            continue  # such as Canvas's row "Points Possible"
        if student in entries:
            raise RosterError(f"{path}, line {number}: {key} {student!r} stands twice; keep one")
        entries[student] = Entry(
            student,
            _name(cells),
            cells,
            _moment(cells, f"{path}, line {number}: {_SUBMITTED_AT}"),
            _cell(cells, teams.COLUMN),
        )
    if not entries:
        raise RosterError(f"{path} names no student in its column {key}")
    return Roster(entries.values(), outsiders=outsiders.values())


def _outsider(row: Mapping[str, str], path: Path) -> Outsider | None:
    """Who stands in this row, if it is no student: staff in Classroom 50's file, the Test Student in Canvas's."""
    cells = {name: value.strip() for name, value in row.items() if name}
    handles = tuple(cells[name] for name in KEYS if cells.get(name))
    login, role = _cell(cells, _LOGINS[0]), _cell(cells, _ROLE)
    if _LOGINS[0] in cells and role not in ("", _STUDENT):  # who has not accepted an invitation has no login yet
        who = login or next(iter(handles), "") or _name(cells) or "somebody"
        return Outsider(handles, f"{who} is staff ({role}) in {path.name}", login)
    is_test = _cell(cells, "Student").casefold() in _TEST_STUDENTS and not _cell(cells, "SIS User ID")
    if is_test and "ID" in cells and _TEST_LOGIN.fullmatch(_cell(cells, "SIS Login ID")):
        return Outsider(handles, f"{cells['Student']} is the Test Student of Canvas in {path.name}", told=True)
    return None


def _canvas_ids(entries: Iterable[Entry]) -> dict[str, Entry]:
    """By what stands in Canvas's column of numbers."""
    return {cell: one for one in entries if (cell := _cell(one.columns, "ID"))}


def _canvas_spelt(name: str) -> str:
    """As `sanitize_user_name` and `sanitize_file_name` in Canvas's `lib/content_zipper.rb` spell it."""
    return re.sub(r"\W", "", re.sub(r"_(\d+)_", r"\1", name).lower())


def _moodle_ids(entries: Iterable[Entry]) -> dict[str, Entry]:
    """By Moodle's numbers, in a worksheet of its; empty for another roster."""
    cells = {_folded(_cell(one.columns, "Identifier")): one for one in entries}
    return {cell.removeprefix(_PARTICIPANT): one for cell, one in cells.items() if cell.startswith(_PARTICIPANT)}


def _moment(cells: Mapping[str, str], where: str) -> datetime | None:
    text = _cell(cells, _SUBMITTED_AT)
    try:
        return parse_moment(text, where) if text else None
    except SettingsError as error:
        raise RosterError(str(error)) from None


def _name(cells: Mapping[str, str]) -> str:
    """The name for people. Columns may be written in upper or lower case, but `student` is the key."""
    folded = {**{_folded(column): value for column, value in cells.items()}, "Student": _cell(cells, "Student")}
    for column in _NAMES:
        if value := folded.get(column):
            return value
    for parts in _PARTS:
        values = [folded.get(part) for part in parts]
        if all(values):
            return " ".join(filter(None, values))
    return ""


def _cell(cells: Mapping[str, str], name: str) -> str:
    # Exactly so, in upper and lower case: Canvas calls names `Student`, and `student` is our own key.
    return cells.get(name) or ""


def _folded_name(text: str) -> str:
    """A name of a person or a team, whose `_` Moodle writes as spaces."""
    return _folded(text.replace("_", " "))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text.strip()).casefold()  # macOS takes accents apart in names of files
