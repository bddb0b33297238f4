"""Reading who is in the class and who works together: CSV files of Canvas, Moodle, a classroom on GitHub or one's own.

The first line of a roster names its columns (`gradebook/roster.py` says which identify students). Not for
lists of teams (`team_lists.py`), nor for whose a submission is (`handed_in.py`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path

from gradebook import column_titles, csv_tables, moodle_words
from gradebook.intake import doubtful_rows, moments, team_lists
from gradebook.roster import (
    CANVAS_POINTS,
    KEYS,
    LOGINS,
    NAME_COLUMNS,
    TEAM_COLUMN,
    TEAM_COLUMNS,
    Entry,
    Outsider,
    Roster,
    RosterError,
    cell_of,
    folded,
    is_team,
)
from gradebook.text_files import some

_STUDENT = re.compile("stud|learner|étudiant|teilnehm|alumn|aluno", re.IGNORECASE)
"""A column of roles says who is staff if it says of somebody that they are a student: else it may mean roles in a team.
Classroom 50's and Gradescope's lists of a course have one."""
_TEACHES = re.compile(r"assistant|\btutor\b|hilfskraft|\bTA\b", re.IGNORECASE)
"""Students who teach: `Student assistant`, `Studentische Hilfskraft`."""
_TEST_LOGIN = re.compile(r"([0-9a-f]{6,64})?")
"""Canvas makes a Test Student for the Student View of each course and exports it with the others: without a SIS ID, and
with a hash for a login (an HMAC in its `Course#student_view_student`). A student of that name has a login of their own.
"""
_PARTS = (
    *(("first name", "last name"), ("first name", "surname"), ("first_name", "last_name"), ("firstname", "lastname")),
)
"""The last pair is Canvas's, where an account shows last and first names in columns of their own."""
_PERMANENT = ("ID", "SIS User ID", "ID number", "SID", "OrgDefinedId", "Student ID", "github_id")
"""Numbers that stay a student's."""
_MARKS = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""What nobody sees, and programs put around names that are written from right to left. Joiners are part of spelling."""
_NAMED_ADDRESS = re.compile(r"[^<>@]*<\s*([^<>\s]+@[^<>\s]+)\s*>\s*")
_PASTED_ADDRESS = re.compile(r"(?:mailto:)?([^<>@;,\s:]+@[^<>@;,\s]+)[;,.]?", re.IGNORECASE)
_GITHUB = re.compile(r"\s*(?:@|(?:https?://)?(?:www\.)?github\.com/@?)(?=[\w-]+/?\s*$)", re.IGNORECASE)
_LETTER = re.compile(r"\w")
_WORDS = re.compile(r"[^\W\d_]{2}")
_ADDRESSES = ("Email address", "Email", "email")
_SUBMITTED_AT = "submitted_at"
_BETWEEN = re.compile(r"[\s_-]+")
_MODIFIED = "Last modified (submission)"


def load(path: Path, teams_file: Path | None = None, zone: tzinfo | None = None) -> Roster:
    """Read a roster, and who works together: by its own column, or by another file.

    `zone` is that of times in it that say none.

    Raises:
        RosterError: one of them cannot be read or has not the columns that it needs, or names a student twice.
    """
    roster = _with_times_of_teams(_with_one_spelling(_with_teams(path, teams_file, zone)))
    if (clash := roster.clash()) is not None:
        team, student = clash
        raise RosterError(
            f"the team {team!r} is called as the student {student} is, who is not in it: give the team another name, "
            "or nobody knows whose a submission is"
        )
    return roster


def _with_one_spelling(roster: Roster) -> Roster:
    """The roster in which a team is spelt the same in every row, because marks by hand are kept under its name."""
    spelt: dict[str, str] = {}
    for entry in roster.entries:
        spelt.setdefault(folded(entry.team), entry.team)
    entries = [replace(entry, team=spelt[folded(entry.team)]) for entry in roster.entries]
    return Roster(entries, roster.strangers, roster.outsiders)


def _with_times_of_teams(roster: Roster) -> Roster:
    """The roster in which a team's work has one time where platforms say it in the row of one member only."""
    latest: dict[str, datetime] = {}
    for entry in roster.entries:
        if entry.team and entry.submitted_at is not None:
            team = folded(entry.team)
            latest[team] = max(latest.get(team, entry.submitted_at), entry.submitted_at)
    entries = [
        replace(entry, submitted_at=entry.submitted_at or latest.get(folded(entry.team))) for entry in roster.entries
    ]
    return Roster(entries, roster.strangers, roster.outsiders)


def _with_teams(path: Path, teams_file: Path | None, zone: tzinfo | None) -> Roster:
    roster = _load(path, zone)
    if teams_file is None:
        return roster
    if any(entry.team for entry in roster.entries):
        raise RosterError(f"both {path} and {teams_file} say who works together; keep one of them")

    def key(cells: Mapping[str, str]) -> str | None:
        if owners := roster.owners_of_row(cells):
            return owners[0].student
        if several := roster.several(filter(None, cells.values())):
            keys = ", ".join(namesake.student for namesake in several)
            raise RosterError(f"several students are called {several[0].name!r} ({keys}); name them there as here")
        return None

    try:
        teams = team_lists.load(teams_file, KEYS, key)
    except team_lists.TeamsError as error:
        raise RosterError(str(error)) from None
    entries = [replace(entry, team=teams.of.get(entry.student, "")) for entry in roster.entries]
    strangers = [stranger for stranger in teams.strangers if roster.outsider([stranger]) is None]
    return Roster(entries, strangers, roster.outsiders)


def _load(path: Path, zone: tzinfo | None) -> Roster:
    try:
        table = csv_tables.read(path)
    except csv_tables.TableError as error:
        raise RosterError(str(error)) from None
    own = moodle_words.titles_of(table.titles)
    meant = column_titles.as_known(table.titles)
    every = {
        row.line: _unmarked(column_titles.renamed(_in_english(row.cells, own), {} if own else meant))
        for row in table.rows
    }
    role = _role_column(every.values())
    outsiders = {
        number: outsider for number, row in every.items() if (outsider := _outsider(row, path, role)) is not None
    }
    worth = _canvas_points(every.values())
    rows = {number: row | worth for number, row in every.items() if number not in outsiders}
    doubtful_rows.check(rows, path)
    for wanted in () if own else (TEAM_COLUMNS, (_SUBMITTED_AT,)):
        if said := column_titles.misspelt(meant.values(), wanted):
            raise RosterError(f"{path} {said}")
    key = next((name for name in KEYS if any(cell_of(row, name).strip() for row in rows.values())), None)
    if key is None:
        below = next((row.line for row in table.rows if any(cell in KEYS for cell in row.cells.values())), None)
        if below is not None:
            raise RosterError(
                f"{path}: line {below} looks like the titles, which must be in the first line: remove what is above"
            )
        raise RosterError(
            f"{path} has no column that names students, only {', '.join(filter(None, table.titles))}; the first line "
            f"has the titles, so call one of them {', '.join(KEYS[:4])}, ... A worksheet of Moodle's is read in "
            f"{len(moodle_words.LANGUAGES)} languages; download it in one that docs/platforms/moodle.md lists"
        )
    addresses = Counter(folded(cell_of(row, name)) for row in rows.values() for name in _ADDRESSES)
    _check_twice(rows, path)
    entries: dict[str, Entry] = {}
    lines: dict[str, int] = {}
    spelt: dict[tuple[str, str], str] = {}
    for number, row in rows.items():
        cells = {name: value.strip() for name, value in row.items() if name}
        named = [cells[name] for name in (key, *KEYS) if not doubtful_rows.says_nothing(cells.get(name, ""))]
        # An address that two students share names neither, where something else names them.
        student = next((cell for cell in named if addresses[folded(cell)] < 2), next(iter(named), ""))
        if student.startswith("#") and "OrgDefinedId" not in cells:
            raise RosterError(f"{path}, line {number}: {student!r} looks like a remark; remove the row, or the #")
        if not student and (name := _name(cells)) and not doubtful_rows.says_nothing(name) and not _is_points(cells):
            raise RosterError(
                f"{path}, line {number}: {name!r} has no identifier; write one into the column {key}, or remove the row"
            )
        if not student and (cell := _says_something(cells)):
            raise RosterError(
                f"{path}, line {number}: it has {cell!r} and names nobody; write an identifier into the column {key}, "
                "or remove the row"
            )
        if not student:
            continue  # such as Canvas's row "Points Possible"
        twin = spelt.setdefault((folded(student), folded(_name(cells))), student)
        if student in entries or twin != student:
            other = "" if twin == student else f", as {twin!r}"
            names = [name for name in (entries[twin].name if twin in entries else "", _name(cells)) if name]
            called = f", for {' and for '.join(names)}" if len(set(map(folded, names))) > 1 else ""
            unlike = [title for title, cell in cells.items() if title and entries[twin].columns.get(title, "") != cell]
            differ = f", with another {some(unlike)}" if unlike and not called and not other else ""
            more = (
                ": correct the one that is not theirs" if called else "; keep the right one" if differ else "; keep one"
            )
            raise RosterError(
                f"{path}, lines {lines[twin]} and {number}: {key} {student!r} stands twice{other}{called}{differ}{more}"
            )
        lines[student] = number
        entries[student] = Entry(
            student,
            _name(cells),
            cells,
            _moment(cells, f"{path}, line {number}: {_SUBMITTED_AT}", zone),
            team if is_team(team := cell_of(cells, TEAM_COLUMN)) else "",
        )
    if not entries:
        raise RosterError(f"{path} names no student in its column {key}")
    return Roster(entries.values(), outsiders=outsiders.values())


def _check_twice(rows: Mapping[int, Mapping[str, str]], path: Path) -> None:
    """Raise RosterError if one student is in two rows, by the name and a number that never changes."""
    lines: dict[tuple[str, str, str], int] = {}
    for number, row in rows.items():
        for title in _PERMANENT:
            cell, name = cell_of(row, title).strip(), folded(_name({key: cell.strip() for key, cell in row.items()}))
            if doubtful_rows.says_nothing(cell) or not name:
                continue
            if (other := lines.setdefault((title, folded(cell), name), number)) != number:
                raise RosterError(
                    f"{path}, lines {other} and {number}: one student, by the name and {title} {cell!r}; keep one"
                )


def _canvas_points(rows: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """What Canvas's export says each assignment is worth, in the row above the students; empty for another file."""
    for row in rows:
        if _is_points(row):
            worth = {title: cell for title, cell in row.items() if cell and title != "Student"}
            return {CANVAS_POINTS: json.dumps(worth, ensure_ascii=False)}
    return {}


def _says_something(cells: Mapping[str, str]) -> str:
    """A cell with words in a row that names nobody; empty for Canvas's own rows, and for sums and measurements."""
    if "ID" in cells and "Student" in cells:
        return ""
    own = {CANVAS_POINTS, moodle_words.OWN_TITLES}
    words = (cell for title, cell in cells.items() if title not in own and _WORDS.search(cell))
    return next((cell for cell in words if not doubtful_rows.sums_up(folded(cell))), "")


def _is_points(row: Mapping[str, str]) -> bool:
    """Whether it is Canvas's row of the points of assignments."""
    return folded(cell_of(row, "Student")) == "points possible" and "ID" in row


def _unmarked(cells: dict[str, str]) -> dict[str, str]:
    """A row without invisible marks and the `#` by which Brightspace keeps spreadsheets from taking identifiers for
    numbers, and with names on GitHub alone where people wrote `@ada-l` or the address of their page."""
    cells = {name: _MARKS.sub("", cell).strip() for name, cell in cells.items()}
    cells |= {
        name: _GITHUB.sub("", cells[name].strip()).rstrip("/") for name in LOGINS if _GITHUB.match(cells.get(name, ""))
    }
    cells |= {name: match[1] for name in _ADDRESSES if (match := _NAMED_ADDRESS.fullmatch(cells.get(name, "")))}
    cells |= {name: match[1] for name in _ADDRESSES if (match := _PASTED_ADDRESS.fullmatch(cells.get(name, "")))}
    marked = ("OrgDefinedId", "Username")
    if "OrgDefinedId" not in cells:
        return cells
    return {name: cell.removeprefix("#") if name in marked else cell for name, cell in cells.items()}


def _role_column(rows: Iterable[Mapping[str, str]]) -> str:
    """The column that says who is staff; empty if there is none."""
    rows = tuple(rows)
    columns = [title for title in (rows[0] if rows else ()) if folded(title) in doubtful_rows.ROLES]
    return next(
        (
            title
            for title in columns
            if LOGINS[0] in rows[0] or any(_STUDENT.search(row.get(title, "")) for row in rows)
        ),
        "",
    )


def _outsider(row: Mapping[str, str], path: Path, role_column: str) -> Outsider | None:
    """Who stands in this row, if it is no student: staff by the column of roles, the Test Student, a sum."""
    cells = {name: value.strip() for name, value in row.items() if name}
    handles = tuple(cells[name] for name in KEYS if cells.get(name))
    login, role = cell_of(cells, LOGINS[0]), cell_of(cells, role_column)
    if role and (
        _TEACHES.search(role) or not _STUDENT.search(role)
    ):  # who has not accepted an invitation has no login yet
        who = login or next(iter(handles), "") or _name(cells) or "somebody"
        said = f"{who} is staff ({role}) in {path.name}"
        return Outsider(handles, said, login, announced=LOGINS[0] not in cells, is_staff=True)
    if (summary := doubtful_rows.summary(cells)) is not None:
        return Outsider(handles, f"{summary!r} in {path.name} sums up other rows", announced=True)
    name = cell_of(cells, "Student") or (_name(cells) if "LastName" in cells else "")
    is_test = name.casefold() in doubtful_rows.TEST_STUDENTS and not cell_of(cells, "SIS User ID")
    if is_test and "ID" in cells and _TEST_LOGIN.fullmatch(cell_of(cells, "SIS Login ID")):
        return Outsider(handles, f"{name} is the Test Student of Canvas in {path.name}", announced=True)
    return None


def _moment(cells: Mapping[str, str], where: str, zone: tzinfo | None) -> datetime | None:
    if cells.keys() >= doubtful_rows.OF_OURS:
        return None  # an export of a class of ours, whose times are those of that class
    # No platform has a column of this name, so its case need not tell two apart; tables of times ignore it as well.
    of_title = {title: moments.without_zone(title, zone) for title, value in cells.items() if value}
    title = next(
        (title for title, (plain, _) in of_title.items() if _BETWEEN.sub("_", folded(plain)) == _SUBMITTED_AT), ""
    )
    text, zone = cells.get(title, ""), of_title.get(title, ("", zone))[1]
    if doubtful_rows.says_nothing(
        text
    ):  # Moodle's worksheet says it in words, in the language of whoever downloaded it
        return moments.parse(cell_of(cells, _MODIFIED), zone)
    try:
        return moments.read(text, zone, where) if text else None
    except moments.MomentError as error:
        raise RosterError(str(error)) from None


def _name(cells: Mapping[str, str]) -> str:
    """The name for people, in one line. Columns may be in upper or lower case, but `student` is the key."""
    by_name = {**{folded(column): value for column, value in cells.items()}, "Student": cell_of(cells, "Student")}
    by_name = {column: " ".join(value.splitlines()) for column, value in by_name.items()}
    for column in ("name", "Student", *NAME_COLUMNS[2:]):
        if value := by_name.get(column):
            return value
    for parts in _PARTS:
        # Of who has one name only, one of the two cells is empty, or has a sign in its place.
        values = [by_name.get(part, "") for part in parts]
        if all(part in by_name for part in parts) and (said := [text for text in values if _LETTER.search(text)]):
            return " ".join(said)
    return ""


def _in_english(cells: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """A row of a worksheet of Moodle's with English titles, and with its own noted for the way back."""
    english = {title: name for name, title in own.items()}
    noted = {moodle_words.OWN_TITLES: json.dumps(own, ensure_ascii=False)} if own else {}
    return {english.get(title, title): cell for title, cell in cells.items()} | noted
