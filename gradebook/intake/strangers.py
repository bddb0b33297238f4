"""Why something may match nobody in a roster, as far as that can be known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from gradebook.identity import Record
from gradebook.intake.doubtful_rows import SHORTENED
from gradebook.roster import KEYS, TEAM_COLUMNS, Roster, folded
from gradebook.text_files import some, with_name

_TAG = re.compile(r"\+[^@]*@")
_ANONYMOUS = re.compile(r"anon_?[0-9A-Za-z]+")
"""What Canvas writes instead of a name."""


def why(roster: Roster, strangers: Iterable[str]) -> str:
    """A reason, which begins with a full stop; empty if none is known.

    Args:
        roster: who is in the class.
        strangers: what matches nobody: keys, names or cells of a table.
    """
    strangers = tuple(strangers)
    if column := _unread_column(roster, strangers):
        return f". The roster has that in its column {column!r}, which nothing reads: call the column student"
    if any(SHORTENED.fullmatch(text.strip()) for text in strangers):
        return ". A spreadsheet has shortened a number: its last digits are gone, so download the file again"
    if tagged := _tagged(roster, strangers):
        return f". {tagged[0]} may be {tagged[1]} with a tag behind the +: write the same address in both places"
    if lost_zeros(roster, strangers):
        return ". The roster has one with more or fewer zeros at the beginning: spreadsheets take these away"
    return ""


def notices(roster: Roster | None, unknown: Sequence[str], known: Iterable[Record], file: Path | None) -> list[str]:
    """What to say of submissions whose authors are not in the roster; nothing if there are none.

    Args:
        roster: who is in the class.
        unknown: their keys.
        known: everybody whom a roster of the class has or had.
        file: the roster.
    """
    left = {record.student: record.now("name") for record in known if record.student in unknown}
    others = [key for key in unknown if key not in left]
    texts = []
    if left:
        names = some([with_name(key, name) for key, name in left.items()])
        texts.append(
            f"note: no longer in {file}, so in no file for platforms, whatever extensions and overrides say: {names}. "
            "Remove their work if it is nobody's in the roster: until then it may be that of a student who is new in "
            "it, and has no 0"
        )
    if others:
        texts.append(f"not in {file}: {', '.join(others)}{of_submissions(roster, others)}")
    return texts


def of_submissions(roster: Roster | None, strangers: Iterable[str]) -> str:
    """The same of submissions; where no reason is known, what to do."""
    strangers = tuple(strangers)
    if strangers and all(_ANONYMOUS.fullmatch(name) for name in strangers):
        return (
            ". Canvas hides the names of this assignment. Before you download it again, switch off Anonymous Grading "
            "there, or no work finds its student"
        )
    return (why(roster, strangers) or _nameless(roster) if roster else "") or (
        ". Move away what is no student's, such as a solution. Name a student's work by the key of the roster, or give "
        "the roster a column github_username for repositories"
    )


def _nameless(roster: Roster) -> str:
    """What to say where nobody has a name, though there are columns that nothing reads: their titles may be others."""
    titles = {name for entry in roster.entries for name in entry.columns if name and not name.startswith("(")}
    unread = sorted(titles - {*KEYS, *TEAM_COLUMNS, "submitted_at"})
    if not unread or any(entry.name for entry in roster.entries):
        return ""
    return (
        ". Nobody has a name, because the roster calls no column name, or First name and Last name, only "
        f"{some(unread)}: call them so, or name a student's work by the key of the roster"
    )


def _unread_column(roster: Roster, strangers: Iterable[str]) -> str | None:
    """A column that identifies nobody here, and has one of these once; names and parts of names are read anyway."""
    wanted = {folded(text) for text in strangers}
    cells = Counter(
        (name, folded(cell))
        for entry in roster.entries
        for name, cell in entry.columns.items()
        if name not in KEYS and folded(cell) not in folded(entry.name)
    )
    return next((name for (name, cell), count in cells.items() if cell in wanted and count == 1), None)


def _tagged(roster: Roster, strangers: Iterable[str]) -> tuple[str, str] | None:
    """An address with a tag, as mail programs allow one behind a `+`, and that without it in the roster."""
    known = {folded(cell): cell for entry in roster.entries for cell in entry.columns.values() if "@" in cell}
    plain = {text: _TAG.sub("@", folded(text)) for text in strangers if _TAG.search(text)}
    return next(((text, known[address]) for text, address in plain.items() if address in known), None)


def lost_zeros(roster: Roster, strangers: Iterable[str]) -> bool:
    """Whether one is an identifier but for zeros at the beginning, which a spreadsheet takes away."""
    exact = {folded(cell) for entry in roster.entries for cell in (entry.student, *entry.columns.values())}
    known = {cell.lstrip("0") for cell in exact}
    digits = [text.strip() for text in strangers if text.strip().isdigit()]
    return any(text.lstrip("0") and text not in exact and text.lstrip("0") in known for text in digits)
