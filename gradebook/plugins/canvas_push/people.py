"""Which student of the class is which one on Canvas, by identifiers only: a name may be two people's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradebook.export.view import Line
from gradebook.plugins.canvas_push.client import PushError
from gradebook.plugins.canvas_push.service import Person
from gradebook.roster import LOGINS

_SIS, _LOGIN, _EMAIL = (
    ("SIS User ID", "ID number"),
    ("SIS Login ID", "Username"),
    ("Email address", "Email", "email"),
)
_OF_CANVAS = ("SIS Login ID", "SIS User ID", "Section")
"""Columns that identify Canvas's own export, whose `ID` is Canvas's number of a student."""


@dataclass(frozen=True)
class Matched:
    """Who was found, and who was not."""

    users: Mapping[str, int]
    """The number on Canvas of each student of the class."""
    unknown: tuple[str, ...]
    """With the reason, if identifiers mean several there."""


LookUp = Callable[[str, str], int | None]
"""The number of a student on Canvas, by the kind of an identifier and its value."""


def match(lines: Iterable[Line], people: Sequence[Person], look_up: LookUp) -> Matched:
    """Find everybody.

    Args:
        lines: students of the class.
        people: students of the course, as far as the owner of the token sees them.
        look_up: asks for one whose identifiers the list does not show.

    Raises:
        PushError: two students of the class are the same one on Canvas.
    """
    known = {person.id for person in people}
    tables = {
        "id": {str(person.id): person.id for person in people},
        "sis": _table((person.sis_user_id, person.id) for person in people),
        "login": _table((person.login_id, person.id) for person in people),
        "email": _table((person.email, person.id) for person in people),
    }
    shown = {"sis": bool(tables["sis"]), "login": bool(tables["login"])}
    users: dict[str, int] = {}
    unknown: list[str] = []
    for line in lines:
        handles = list(_handles(line))
        candidates = _candidates(handles, tables) or _candidates(list(_guesses(line)), tables)
        if len(candidates) > 1:
            called = {person.id: person.name or str(person.id) for person in people}
            meant = ", ".join(f"{value!r} is {called[user]}" for user, value in candidates.items())
            unknown.append(f"{line.student} (there {meant})")
            continue
        user_found = next(iter(candidates), None)
        for kind, value in [*handles, *_guesses(line)] if user_found is None else ():
            if kind in shown and not shown[kind]:
                user = look_up({"sis": "sis_user_id", "login": "sis_login_id"}[kind], value)
                user_found = user if user in known else None
                if user_found is not None:
                    break
        if user_found is None:
            unknown.append(line.student)
            continue
        other = next((student for student, user in users.items() if user == user_found), None)
        if other is not None:
            raise PushError(f"{line.student} and {other} are one student on Canvas ({user_found}); fix the roster")
        users[line.student] = user_found
    return Matched(users, tuple(unknown))


def _candidates(handles: Sequence[tuple[str, str]], tables: Mapping[str, Mapping[str, int]]) -> dict[int, str]:
    """Who has one of these identifiers on Canvas, and which; Canvas's own number is certain by itself."""
    found: dict[int, str] = {}
    for kind, value in handles:
        if (user := tables[kind].get(_folded(value))) is not None:
            found.setdefault(user, value)
            if kind == "id":
                break
    return found


def _handles(line: Line) -> Iterator[tuple[str, str]]:
    """What may be an identifier on Canvas, the surest first."""
    columns = line.result.columns
    if columns.get("ID") and any(name in columns for name in _OF_CANVAS):
        yield "id", columns["ID"]
    for kind, names in (("sis", _SIS), ("login", _LOGIN), ("email", _EMAIL)):
        for name in names:
            if columns.get(name):
                yield kind, columns[name]


def _guesses(line: Line) -> Iterator[tuple[str, str]]:
    """What may be one as well, if no column is: the key, and an address, because many a Canvas has logins of them."""
    columns = line.result.columns
    if line.identifier not in [columns.get(name) for name in LOGINS]:  # on GitHub, and somebody else's login here
        for kind in ("login", "sis", "email"):
            yield kind, line.identifier
    for name in _EMAIL:
        if columns.get(name):
            yield "login", columns[name]


def _table(pairs: Iterable[tuple[str | None, int]]) -> dict[str, int]:
    """By what identifies; whatever two people share identifies nobody."""
    by_value: dict[str, int] = {}
    twice = set()
    for value, user in pairs:
        if value and by_value.setdefault(_folded(value), user) != user:
            twice.add(_folded(value))
    return {value: user for value, user in by_value.items() if value not in twice}


def _folded(text: str) -> str:
    return text.strip().casefold()
