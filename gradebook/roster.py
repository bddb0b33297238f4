"""Who is in the class, and finding a student by any identifier that a platform uses.

The first of `KEYS` that a roster has is the students' key: it names them in the gradebook; a student without one is
named by the next column. Every column of `KEYS` may match a submission, but an identifier that two students share is
nobody's. All columns are kept as they were read, for exports. Not for reading a roster (`intake/roster_files.py`), nor
for identifiers that change (`identity.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gradebook import repository_names, spelt_names
from gradebook.moodle_words import ALONE, DASHES, DEFAULT_GROUPS, NO_GROUP, PARTICIPANTS
from gradebook.spelt_names import folded as folded
from gradebook.spelt_names import folded_name, folded_person

KEYS = (
    *("student", "SIS Login ID", "SIS User ID", "Identifier", "Username", "Email address", "Email", "ID number"),
    *("ID", "SID", "username", "github_username", "identifier", "email", "OrgDefinedId", "Student ID"),
)
LOGINS = ("username", "github_username")
"""Names on GitHub: Classroom 50's `roster.csv`, formerly `students.csv`, has username, first_name, last_name, email,
section, github_id and perhaps role (its `Web-Teacher-Guide.md`, read in November 2026; who was invited by address has
no username yet); GitHub Classroom's `classroom_roster.csv` had identifier, github_username, github_id and name.
Both name repositories CLASSROOM-ASSIGNMENT-LOGIN or ASSIGNMENT-LOGIN."""
_CANVAS_NUMBERS = ("user_id", "canvas_user_id")
"""What its own tables call what its gradebook calls ID."""
_CANVAS_SIS = ("SIS Login ID", "SIS User ID")
CANVAS_POINTS = "(Canvas's points)"
"""A column of ours, next to those of the file: as JSON, what Canvas's export says each assignment is worth."""
PARTICIPANT = re.compile(rf"(?:{'|'.join(map(re.escape, PARTICIPANTS))}) ?(?=\d+$)", re.IGNORECASE)
"""Moodle's worksheet says "Participant 12345" where its archives say 12345."""
TEAM_COLUMN = "team"
"""Of the roster."""
TEAM_COLUMNS = (TEAM_COLUMN, "group_name", "Group name", "Group", "Groups")
_LIKE_TEAM = re.compile(r"\b(teams?|groups?|partners?|pair|gruppe|groupe|grupo|équipe)\b", re.IGNORECASE)
"""What titles of columns that may say who works together have in common."""
NAME_COLUMNS = ("name", "student", "full name", "display name")
"""Small, those that hold names for people."""


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
    former: tuple[str, ...] = ()
    """Identifiers that earlier rosters had: they count only where nobody has them now."""


@dataclass(frozen=True)
class Outsider:
    """Somebody who stands in the roster and is no student of the class."""

    handles: tuple[str, ...]
    why: str
    """Who they are, as the beginning of a sentence."""
    login: str = ""
    """Their name on GitHub."""
    announced: bool = False
    """Whether to say so even where nothing of theirs was handed in."""
    is_staff: bool = False


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
                self._teams.setdefault(folded_name(entry.team), []).append(entry)
        self._by_identifier = _levels(self.entries)
        self._by_name: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.name:
                self._by_name.setdefault(folded_person(entry.name), []).append(entry)
        self._of_platform = {CanvasId: _canvas_ids(self.entries), MoodleId: _moodle_ids(self.entries)}
        self._by_login: dict[str, list[Entry]] = {}
        for entry in self.entries:
            for login in dict.fromkeys(folded(cell_of(entry.columns, name)) for name in LOGINS):
                if login:
                    self._by_login.setdefault(login, []).append(entry)
        # A name on GitHub that changed is at the end of older repositories still.
        former: dict[str, list[Entry]] = {}
        for entry in self.entries:
            for login in map(folded, entry.former) if any(cell_of(entry.columns, name) for name in LOGINS) else ():
                former.setdefault(login, []).append(entry)
        self._by_login = {**former, **self._by_login}
        self._outside = {folded(handle): outsider for outsider in self.outsiders for handle in outsider.handles}
        self._outside_logins = {folded(outsider.login): outsider for outsider in self.outsiders if outsider.login}

    def find(self, handles: Iterable[str]) -> Entry | None:
        """The student with one of these identifiers, the first that is known."""
        handles = list(handles)
        known = next((entry for handle in handles if (entry := self._known(handle)) is not None), None)
        return known or next((entry for handle in handles if (entry := self._owner(folded(handle))) is not None), None)

    @property
    def unused_teams(self) -> str | None:
        """A column of the roster that may say who works together, where nobody is in a team."""
        cells = [(name, cell) for entry in self.entries for name, cell in entry.columns.items() if is_team(cell)]
        like = (name for name, _ in cells if _LIKE_TEAM.search(name))
        return None if self._teams else team_column(name for name, _ in cells) or next(like, None)

    def _known(self, handle: str) -> Entry | None:
        if (entry := self._identified(handle)) is not None:
            return entry  # without a look at names, which takes its time in a class of hundreds
        named = self.named(handle)
        return named[0] if len(named) == 1 else None

    def _identified(self, handle: str) -> Entry | None:
        entries = self.identified(handle)
        return entries[0] if len(entries) == 1 else None

    def identified(self, handle: str) -> list[Entry]:
        """Who has this identifier: several where two students share it, so that it is nobody's."""
        if isinstance(handle, CanvasGroup):
            return []
        of_platform = self._of_platform.get(type(handle), {})
        if handle in of_platform or (of_platform and self._is_strict(handle)):
            return of_platform.get(handle, [])
        for level in self._by_identifier:
            if entries := level.get(folded(handle)):
                exactly = [entry for entry in entries if handle.strip() in (*entry.columns.values(), entry.student)]
                return exactly if len(exactly) == 1 else entries
        return []

    def _is_strict(self, handle: str) -> bool:
        """Whether the roster is the platform's own, in which its numbers stand in one column only."""
        if isinstance(handle, CanvasId):
            return any(cell_of(entry.columns, name) for entry in self.entries for name in _CANVAS_SIS)
        return True

    def named(self, handle: str) -> list[Entry]:
        """Who has this name; several where two students have it."""
        if isinstance(handle, PlatformId):
            return []
        entries = self._by_name.get(folded_person(handle), []) or self._named_in_a_group(handle)
        exactly = [entry for entry in entries if folded(entry.name) == folded(handle)]
        return exactly or entries or spelt_names.meant(handle, self.entries, KEYS)

    def _named_in_a_group(self, handle: str) -> list[Entry]:
        """Who has the name behind that of a group, as Moodle writes `Team 1-Ada Lovelace`."""
        parts = handle.split("-")
        for place in range(1, len(parts)):
            group, name = folded_name("-".join(parts[:place])), folded_person("-".join(parts[place:]))
            if name in self._by_name and (group in self._teams or group in DEFAULT_GROUPS):
                return self._by_name[name]
        return []

    def several(self, handles: Iterable[str]) -> list[Entry]:
        """Those whose identifier or name it is, where it cannot be known which of them is meant; else nobody."""
        handles = list(handles)
        return [] if self.owners(handles) else self._shared(handles)

    def _shared(self, handles: Iterable[str]) -> list[Entry]:
        """The students who share the first of these identifiers or names that several have."""
        for handle in handles:
            for entries in (self.identified(handle), self._by_login.get(self._login(folded(handle)), [])):
                if len(entries) > 1:
                    return entries
            if len(named := self.named(handle)) > 1:
                return named
        return []

    def shares_identifier(self, handles: Iterable[str]) -> bool:
        """Whether one of these is an identifier, not a name, and of more than one student."""
        return any(len(self.identified(handle)) > 1 for handle in handles)

    def team(self, handles: Iterable[str]) -> list[Entry]:
        """The team that is called one of these; nobody where there is none."""
        for handle in handles:
            if isinstance(handle, CanvasGroup):
                members = next((them for them in self._teams.values() if _canvas_spelt(them[0].team) == handle), [])
            else:
                members = [] if isinstance(handle, PlatformId) else self._teams.get(folded_name(handle), [])
            if members:
                return members
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
            namesakes = self._shared(handles)
            in_one_team = len({folded_name(namesake.team) for namesake in namesakes}) == 1 and bool(namesakes[0].team)
            return self._teams[folded_name(namesakes[0].team)] if in_one_team else []
        return [entry, *(member for member in self._teams.get(folded_name(entry.team), ()) if member is not entry)]

    def owners_of_row(self, cells: Mapping[str, str]) -> list[Entry]:
        """Whose row of a table this is, as `owners`.

        Args:
            cells: by the titles of columns that identify students; one called `repository` holds its address.

        Raises:
            RosterError: one cell is a student's, and another one is another student's.
        """
        handles = [form for title, cell in cells.items() if cell for form in _forms(title, cell)]
        owners = self.owners(handles)
        if owners and not self.team(handles):
            for title, cell in cells.items():
                if (other := self._other(title, cell)) is not None and other is not owners[0]:
                    raise RosterError(
                        f"{handles[0]!r} is {owners[0].student!r} of the roster, and {title} {cell!r} is "
                        f"{other.student!r}: a row is one student's"
                    )
        return owners

    def _other(self, title: str, cell: str) -> Entry | None:
        """The only student with this in the column of the same title, or with this name."""
        if not cell:
            return None
        called = folded(title)
        having = [
            entry
            for entry in self.entries
            if any(folded(name) == called and folded(own) == folded(cell) for name, own in entry.columns.items())
        ]
        having = having or (self.named(cell) if called in NAME_COLUMNS else [])
        return having[0] if len(having) == 1 else None

    def outsider(self, handles: Iterable[str]) -> Outsider | None:
        """Who has these identifiers and is no student; None where a student has one of them, or nobody."""
        handles = list(handles)
        if self.owners(handles):
            return None
        handles = [folded(handle) for handle in handles]
        known = next((self._outside[handle] for handle in handles if handle in self._outside), None)
        logins = [self._login(handle) for handle in handles]
        return known or next((self._outside_logins[login] for login in logins if login in self._outside_logins), None)

    def called(self, handles: Iterable[str]) -> str | None:
        """What to call whoever has one of these identifiers: the team by its name, or the student's key."""
        handles = list(handles)
        team, entry = self.team(handles), self.find(handles)
        return team[0].team if team else entry.student if entry else None

    def _owner(self, repository: str) -> Entry | None:
        """Whose repository this is by the end of its name."""
        entries = self._by_login.get(self._login(repository), [])
        return entries[0] if len(entries) == 1 else None

    def _login(self, repository: str) -> str:
        """The login at the end of a repository's name; empty where there is none."""
        return repository_names.parts(repository, (*self._by_login, *self._outside_logins))[1]

    def beginning(self, handles: Iterable[str]) -> tuple[str, bool]:
        """What is before the login in the name of a repository; whether only the name's end identifies it."""
        handles, logins = list(handles), (*self._by_login, *self._outside_logins)
        starts = (repository_names.parts(folded(handle), logins)[0] for handle in handles)
        return next(filter(None, starts), ""), not self.team(handles) and not any(map(self._known, handles))

    def identifies(self, handles: Iterable[str]) -> bool:
        """Whether one of them is an identifier; a name for people is none, since anybody can give a file any name."""
        handles = list(handles)
        return bool(self.team(handles)) or any(
            self._identified(handle) or self._owner(folded(handle)) for handle in handles
        )

    def clash(self) -> tuple[str, str] | None:
        """A team that is called as a student is who is not in it, so that nobody knows whose a submission is."""
        keys = {folded(entry.student): entry for entry in self.entries}
        for members in self._teams.values():
            team = members[0].team
            called = [*self.named(team), *([keys[folded(team)]] if folded(team) in keys else [])]
            for entry in called:
                if entry not in members:
                    return team, entry.student
        return None


def team_column(columns: Iterable[str]) -> str | None:
    """The column that names teams in a file of these columns; None if there is none."""
    known = set(columns)
    return next((name for name in TEAM_COLUMNS if name in known), None)


def is_team(cell: str) -> bool:
    """Whether a cell of such a column names a team."""
    return bool(cell.strip(DASHES)) and cell.casefold() not in (*NO_GROUP, *ALONE)


def _levels(entries: Iterable[Entry]) -> tuple[dict[str, list[Entry]], ...]:
    """Who has an identifier: in the roster's key column, in another column, and in an earlier roster."""
    entries = tuple(entries)
    key = next((name for name in KEYS if any(cell_of(entry.columns, name) for entry in entries)), "")
    levels: tuple[dict[str, list[Entry]], ...] = ({}, {}, {})
    for entry in entries:
        cells = {name: folded(cell_of(entry.columns, name)) for name in KEYS}
        others = [form for cell in cells.values() for form in (cell, PARTICIPANT.sub("", cell), *_addresses(cell))]
        former = [folded(handle) for handle in (entry.student, *entry.former)]
        for level, handles in zip(levels, ([cells.get(key, "")], others, former), strict=True):
            for handle in dict.fromkeys(filter(None, handles)):
                level.setdefault(handle, []).append(entry)
    return levels


def _addresses(cell: str) -> list[str]:
    """Each of several e-mail addresses in one cell."""
    parts = re.split(r"[;,\s]+", cell)
    return [part for part in parts if "@" in part] if len(parts) > 1 else []


def _canvas_ids(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """By what stands in Canvas's column of numbers."""
    numbers: dict[str, list[Entry]] = {}
    for entry in entries:
        if cell := cell_of(entry.columns, "ID"):
            numbers.setdefault(cell, []).append(entry)
    return numbers


def _canvas_spelt(name: str) -> str:
    """As `sanitize_user_name` and `sanitize_file_name` in Canvas's `lib/content_zipper.rb` spell it."""
    return re.sub(r"\W", "", re.sub(r"_(\d+)_", r"\1", name).lower())


def _moodle_ids(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """By Moodle's numbers, in a worksheet of its; empty for another roster."""
    numbers: dict[str, list[Entry]] = {}
    for entry in entries:
        cell = cell_of(entry.columns, "Identifier").strip()
        if PARTICIPANT.match(cell):
            numbers.setdefault(PARTICIPANT.sub("", cell), []).append(entry)
    return numbers


def _forms(title: str, cell: str) -> tuple[str, ...]:
    """What may identify a student in a cell."""
    if folded(title) in _CANVAS_NUMBERS:
        return (CanvasId(cell),)
    return (cell, repository_names.repository_name(cell)) if folded(title) == "repository" else (cell,)


def cell_of(cells: Mapping[str, str], name: str) -> str:
    """What is in a column; empty if there is no such column."""
    # Exactly so, in upper and lower case: Canvas calls names `Student`, and `student` is our own key.
    return cells.get(name) or ""
