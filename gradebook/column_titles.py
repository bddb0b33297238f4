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


def misspelt(titles: Collection[str], known: Collection[str]) -> str:
    """What to say of a title that nothing reads, because a letter of a known one is wrong; empty if there is none.

    Args:
        titles: of the file, as `as_known` means them.
        known: titles that mean one thing; if the file has one of them, nothing is amiss.
    """
    forms = {_form(name): name for name in reversed(tuple(known))}
    for title in titles:
        if forms.keys() & set(map(_form, titles)):
            return ""
        near = next((name for form, name in forms.items() if _is_near(_form(title), form)), None)
        if near is not None:
            return f"has a column {title!r}, which nothing reads: call it {near}, or give it a title that is less alike"
    return ""


def _is_near(typed: str, form: str) -> bool:
    """Whether two titles differ by one letter: it is another one, is missing, is too much, or comes one later."""
    if abs(len(typed) - len(form)) > 1 or not typed.isalpha():
        return False
    shorter, longer = sorted((typed, form), key=len)
    if len(shorter) < len(longer):
        return any(longer[:place] + longer[place + 1 :] == shorter for place in range(len(longer)))
    places = [place for place, pair in enumerate(zip(typed, form, strict=True)) if pair[0] != pair[1]]
    swapped = len(places) == 2 and places[1] == places[0] + 1
    return len(places) == 1 or (swapped and typed[places[0] : places[1] + 1] == form[places[1]] + form[places[0]])


def _form(title: str) -> str:
    return re.sub(r"[\s_-]+", "", title).casefold()
