"""Rows of a roster that spreadsheets have changed, or that are about nobody in the class any more.

Not for reading a roster (`roster_files.py`), nor for what was handed in (`doubts.py`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from gradebook.command_name import command
from gradebook.moodle_words import DASHES
from gradebook.roster import KEYS, NAME_COLUMNS, Entry, Roster, RosterError, cell_of, folded
from gradebook.text_files import some, with_name

_SUMMARIES = frozenset(
    re.findall(
        r"\w+",
        "average averages mean median total totals sum maximum minimum count summe gesamt durchschnitt mittelwert "
        "anzahl moyenne somme promedio suma media somma totaal gemiddelde",
    )
) | {"class average", "overall average", "standard deviation", "std dev", "max points", "out of"}
"""What spreadsheets call a row below the students, or above them, small."""
SHORTENED = re.compile(r"\d(?:[.,]\d+)?E\+\d{1,3}", re.IGNORECASE)
"""A long number as a spreadsheet shows it, and saves it: its last digits are gone."""
_DECIMAL = re.compile(r"\d+[.,]0+")
"""A whole number as programs write it that take a column with an empty cell for measurements."""
_GONE = frozenset(
    re.findall(
        r"\w+",
        "suspended inactive dropped withdrawn deleted disabled unenrolled deregistered concluded completed rejected "
        "gesperrt inaktiv abgemeldet suspendu inactif suspendido inactivo sospeso",
    )
) | {"not current", "not active", "no longer enrolled"}
"""What platforms call somebody who is in a list and no longer in the class, small."""
OF_OURS = frozenset(("submission_sha256", "late_rule"))
"""Columns of `grades.csv` alone, whose decisions are those of that class."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_ADDRESSES = ("Email address", "Email", "email")
_ADDRESS = re.compile(r"[^\s@]+@[^\s@]+\.[^\s@]+")
_UNREAD = {
    **dict.fromkeys(
        ("extension", "extensions", "extendeddeadline", "deadline", "duedate", "extradays"), "[extensions]"
    ),
    **dict.fromkeys(("excused", "excuse", "exempt"), "--excuse"),
    **dict.fromkeys(("bonus", "adjustment", "pointadjustment", "extrapoints", "override"), "--override"),
}
"""Columns of decisions that a roster does not make, by their letters, and what makes them."""
TEST_STUDENTS = ("student, test", "test student")
"""What Canvas calls whom it makes for the Student View, in its export and where names are shown in order."""
ROLES = ("role", "roles", "enrollment type", "enrollment role", "course role")
_STAFF = re.compile(
    r"instructor|teacher|\bstaff\b|professor|lecturer|assistant|\btutor\b|\bTA\b|grader|lehrende|dozent|profesor",
    re.IGNORECASE,
)
_STANDING = re.compile(r"\b(status|state|enrol\w*|registration)\b", re.IGNORECASE)


def says_nothing(cell: str) -> bool:
    """Whether an identifier is missing, whatever a person or a spreadsheet has written instead of it."""
    return not cell.strip(DASHES) or cell.casefold() in ("n/a", "#n/a")


def summary(cells: Mapping[str, str]) -> str | None:
    """What a row that sums up the others is called; None if the row is a student's."""
    named = {
        cell
        for title, cell in cells.items()
        if cell and (title in KEYS or folded(title) in NAME_COLUMNS)
        # A count in the column of names, as in `Total,2`; no name is a number.
        if title in KEYS or not re.fullmatch(r"[\d.,]+", cell)
    }
    # A student of that name has a number or an address next to it.
    return next(iter(named)) if len(named) == 1 and sums_up(folded(next(iter(named)))) else None


def sums_up(text: str) -> bool:
    """Whether a cell, small, says what is in its row or column: `total`, `total: 60 students`, `60 students`."""
    first = next(iter(re.findall(r"\w+", text)), "")
    counts = first in (*_SUMMARIES, "number") and re.search(r"[:=]|\d", text) is not None
    return text in _SUMMARIES or counts or re.fullmatch(r"\d+ (students|participants|studierende)", text) is not None


def check(rows: Mapping[int, Mapping[str, str]], path: Path) -> None:
    """Raise RosterError if a program has changed what identifies a student: two may have become one."""
    titles = max(map(list, rows.values()), key=len, default=[])
    for line, row in rows.items():
        if len(row) < len(titles) and (shifted := _shifted(row)):
            raise RosterError(
                f"{path}, line {line}: {shifted}, and the row has {len(titles) - len(row)} cells less than others: one "
                "before it is missing. Write the separator for each empty cell, too"
            )
        for title, cell in row.items():
            if title in KEYS and (meant := _read_as_windows(cell)):
                raise RosterError(
                    f"{path}, line {line}: {title} is {cell!r}, which was {meant!r}: a program has read the file in "
                    "another encoding and saved it so; download it again, or save it as UTF-8 from a program that "
                    "shows the names right"
                )
            if title in KEYS and folded(title) in NAME_COLUMNS and (lost := _LOST.search(cell)):
                raise RosterError(
                    f"{path}, line {line}: {title} is {cell!r}, and {lost[0]!r} stands for a letter that a program "
                    "did not know: download the file again as UTF-8, or correct it"
                )
            if title in KEYS and _DECIMAL.fullmatch(cell.strip()):
                raise RosterError(
                    f"{path}, line {line}: {title} is {cell}, a number to which a program has added decimals; "
                    "download the file again, or save the column as text"
                )
        for title in KEYS:
            if SHORTENED.fullmatch(cell := cell_of(row, title).strip()):
                raise RosterError(
                    f"{path}, line {line}: {title} is {cell}, a number that a spreadsheet has shortened, so its last "
                    "digits are gone: download the file again, and do not save it with a spreadsheet, or make the "
                    "column text there first"
                )


_LOST = re.compile(r"\ufffd|&(?:#\d+|#x[0-9a-fA-F]+|[a-zA-Z]+);|(?<=[^\W\d_])\?(?=[^\W\d_])")
"""What programs write for a letter that they cannot: a sign of Unicode, a name of HTML, a question mark in a word."""


def _shifted(row: Mapping[str, str]) -> str:
    """What is in another cell than its own, as where somebody left one out; empty if nothing is for certain."""
    for title, cell in row.items():
        if not says_nothing(cell) and title in _ADDRESSES and "@" not in cell:
            return f"{title} is {cell!r}, which is no address"
        if folded(title) in NAME_COLUMNS and title != "student" and _ADDRESS.fullmatch(cell.strip()):
            return f"{title} is {cell!r}, which is no name"
    return ""


def _read_as_windows(cell: str) -> str:
    """What a cell was before a program took UTF-8 for Windows' encoding, perhaps a part of it; empty if none did."""
    was = _NOT_ASCII.sub(_undone, cell)
    return "" if was == cell else was


def _undone(letters: re.Match[str]) -> str:
    try:
        return letters[0].encode("cp1252").decode("utf-8")
    except UnicodeError:
        return letters[0]


def notices(roster: Roster, folder: Path | None = None) -> tuple[str, ...]:
    """What an instructor should look at."""
    entries = roster.entries
    return tuple(
        filter(
            None,
            (
                left(entries),
                test_students(entries),
                staff_too(roster),
                staff_alone(entries),
                no_addresses(entries),
                damaged_names(entries),
                spelt_teams(entries),
                *decisions(entries, folder),
            ),
        )
    )


def decisions(entries: Iterable[Entry], folder: Path | None) -> list[str]:
    """What to say of columns with decisions, which nothing reads from a roster."""
    students: dict[str, list[str]] = {}
    for entry in entries:
        for title, cell in entry.columns.items() if not entry.columns.keys() >= OF_OURS else ():
            if re.sub(r"[\W_]", "", title).casefold() in _UNREAD and not says_nothing(cell) and folded(cell) != "no":
                students.setdefault(title, []).append(entry.student)
    review = f"{command()} review {'CLASS' if folder is None else shlex.quote(str(folder))}"
    where = {"[extensions]": "write it into [extensions] of class.toml"}
    where |= {option: f"{review} {option}" for option in ("--excuse", "--override")}
    return [
        f"the roster's column {title!r} has something for {some(names)}, and nothing reads it. If it should count: "
        + where[_UNREAD[re.sub(r"[\W_]", "", title).casefold()]]
        for title, names in students.items()
    ]


def left(entries: Iterable[Entry]) -> str:
    """What to say of students whose row says that they are no longer in the class; empty if there is none."""
    gone = [
        f"{entry.student} ({title}: {cell})"
        for entry in entries
        for title, cell in entry.columns.items()
        if folded(cell) in _GONE and _STANDING.search(title.replace("_", " "))
    ]
    if not gone:
        return ""
    return (
        f"the roster says that these are no longer in the class, and they count like all others: "
        f"{some(gone)}. Remove their rows, if they should have no grade"
    )


def test_students(entries: Iterable[Entry]) -> str:
    """What to say of students whom Canvas may have made; empty if there is none. One of that name may be a person."""
    made = [f"{entry.student} ({entry.name})" for entry in entries if may_be_test_student(entry.name, entry.columns)]
    if not made:
        return ""
    return (
        f"called like Canvas's Test Student, without a SIS ID but with a login of a person: {some(made)}. A submission "
        "counts; without one there is no 0. Remove the row, if it is nobody"
    )


def may_be_test_student(name: str, columns: Mapping[str, str]) -> bool:
    """Whether Canvas may have made this student, who has a login that a person can have."""
    return name.casefold() in TEST_STUDENTS and "ID" in columns and not cell_of(columns, "SIS User ID")


def staff_alone(entries: Iterable[Entry]) -> str:
    """What to say of roles of staff where nobody is called a student, so that the column says nothing for certain."""
    staff = [
        f"{entry.student} ({title}: {cell})"
        for entry in entries
        for title, cell in entry.columns.items()
        if folded(title) in ROLES and _STAFF.search(cell)
    ]
    if not staff:
        return ""
    return (
        f"these count as students, because their roster's column says of nobody 'student': {some(staff)}. If they are "
        "staff, remove their rows, or write student into the rows of the others"
    )


def no_addresses(entries: Iterable[Entry]) -> str:
    """What to say of cells in a column of addresses that are none, as in a second row of titles."""
    wrong = [
        f"{with_name(entry.student, entry.name)} ({title}: {cell})"
        for entry in entries
        for title, cell in entry.columns.items()
        if title in _ADDRESSES and not says_nothing(cell) and "@" not in cell
    ]
    if not wrong:
        return ""
    return (
        f"what is in the column of addresses is none: {some(wrong)}. Correct it; remove the row, if it is no student's"
    )


def damaged_names(entries: Iterable[Entry]) -> str:
    """What to say of names that a program has damaged; they find nobody's work, and identifiers still do."""
    damaged = [
        f"{entry.student} ({title}: {cell!r}{f', which was {was!r}' if (was := _read_as_windows(cell)) else ''})"
        for entry in entries
        for title, cell in entry.columns.items()
        if folded(title) in NAME_COLUMNS and (_read_as_windows(cell) or _LOST.search(cell))
    ]
    if not damaged:
        return ""
    return (
        f"a program has damaged names in the roster, and these students read them so in their feedback: "
        f"{some(damaged)}. Download the file again as UTF-8, or correct the names, and give the submissions again"
    )


def spelt_teams(entries: Iterable[Entry]) -> str:
    """What to say of teams whose names differ in spaces, signs and zeros alone; empty if there are none."""
    by_form: dict[str, dict[str, list[str]]] = {}
    for entry in entries:
        if entry.team:
            form = "".join(re.findall(r"[^\W_0]+|0(?=\D|$)|(?<=\d)0+", folded(entry.team)))
            by_form.setdefault(form, {}).setdefault(entry.team, []).append(entry.student)
    alike = [
        " and ".join(f"{team!r} ({', '.join(students)})" for team, students in spellings.items())
        for form, spellings in by_form.items()
        if len(spellings) > 1 and form
    ]
    if not alike:
        return ""
    return (
        f"teams with nearly the same name are several teams: {some(alike)}. If one team is meant, spell it the same in "
        "each row"
    )


def staff_too(roster: Roster) -> str:
    """What to say of students whom another row calls staff; empty if there is none."""
    staff = {folded(handle) for outsider in roster.outsiders if outsider.is_staff for handle in outsider.handles}
    both = [
        entry.student
        for entry in roster.entries
        if staff & {folded(cell_of(entry.columns, name)) for name in KEYS if cell_of(entry.columns, name)}
    ]
    if not both:
        return ""
    return f"the roster has these as staff and as students, and they are graded as students: {some(both)}"
