"""Titles of columns as people type them: `Team`, `E-Mail` and `student id` are `team`, `Email` and `Student ID`.

Platforms' own titles are exact, because Canvas calls names `Student` where `student` is a key. A title that is nobody's
exactly means the one that differs in case, spaces, `_` and `-` only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from gradebook.roster import KEYS, TEAM_COLUMNS

_KEY, _NAMES = "student", "Student"
"""`Student` holds names in Canvas's export, which has other columns that identify students."""
_KNOWN = (*KEYS, *TEAM_COLUMNS, "submitted_at")


def as_known(titles: Sequence[str], known: Collection[str] = _KNOWN) -> dict[str, str]:
    """By each title of a file the known one that it means; itself if it means none.

    Of two that mean the same the first one does.
    """
    by_form = {_form(title): title for title in reversed(tuple(known))}
    meant: dict[str, str] = {}
    for title in titles:
        name = title if title in known or title == _NAMES else by_form.get(_form(title), title)
        taken = name != title and (name in titles or name in meant.values())
        meant[title] = title if taken else name
    if _NAMES in meant and _KEY in known and not set(KEYS) & set(meant.values()):
        meant[_NAMES] = _KEY
    return meant


def renamed(cells: Mapping[str, str], meant: Mapping[str, str]) -> dict[str, str]:
    """A row with the titles that are meant."""
    return {meant.get(title, title): cell for title, cell in cells.items()}


def _form(title: str) -> str:
    return re.sub(r"[\s_-]+", "", title).casefold()
