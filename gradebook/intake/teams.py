"""Who works together: a column of the roster, or a file that a platform lets instructors download.

A file is a CSV with a column that identifies students (those of a roster, or Canvas's `login_id`, `user_id`,
`canvas_user_id`) and one that names teams. Canvas's list of a group set has `name,canvas_user_id,user_id,login_id,
sections,group_name,canvas_group_id,group_id` (its guide "How do I import groups in a group set?"); Moodle's list of
participants has `Groups`, where a team is the whole cell. Not for whose a submission is (`collect.py`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gradebook.intake import csv_text

COLUMN = "team"
"""Of the roster."""
_TEAMS = (COLUMN, "group_name", "Group name", "Group", "Groups")
_NONE = ("no groups", "keine gruppen", "aucun groupe", "sin grupos", "nessun gruppo", "geen groepen", "sem grupos")
"""What Moodle writes for who is in no group, in some of its languages."""
DEFAULT_GROUPS = ("default group", "standardgruppe", "groupe par défaut", "grupo por defecto", "gruppo predefinito")
"""The group of who is in none, where a Moodle assignment is handed in by groups, in some of its languages."""
_MEMBERS = ("login_id", "user_id", "canvas_user_id")


class TeamsError(ValueError):
    """The file cannot be used; the message is one line that says what to do."""


@dataclass(frozen=True)
class Teams:
    """The team of each student, by the roster's key."""

    of: Mapping[str, str]
    strangers: tuple[str, ...] = ()
    """Who stands in the file and not in the roster: they left, or the file is another course's."""


def column_in(columns: Iterable[str]) -> str | None:
    """The column that names teams in a file of these columns; None where there is none."""
    known = set(columns)
    return next((name for name in _TEAMS if name in known), None)


def is_team(cell: str) -> bool:
    """Whether a cell of such a column names a team."""
    return bool(cell) and cell.casefold() not in _NONE


def load(path: Path, columns: Iterable[str], find: Callable[[Iterable[str]], str | None]) -> Teams:
    """Read a file.

    Args:
        path: the file.
        columns: a roster's columns that identify students.
        find: the roster's key of whoever has one of these identifiers.

    Raises:
        TeamsError: it cannot be read, lacks a column, or puts somebody into two teams.
    """
    try:
        text, line = csv_text.numbered(path)
        first = text.partition("\n")[0]
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count)))
    except OSError as error:
        raise TeamsError(f"{path} cannot be read: {error.strerror}") from None
    except csv_text.EncodingError as error:
        raise TeamsError(str(error)) from None
    except csv.Error as error:
        raise TeamsError(f"{path} is no CSV file: {error}") from None
    names = {(name or "").strip(): name for name in (rows[0] if rows else {})}
    team_column = column_in(names)
    who = [name for name in (*columns, *_MEMBERS) if name in names]
    if team_column is None or not who:
        lacking = "names teams; call one of them team" if team_column is None else "identifies students"
        raise TeamsError(f"{path} has no column that {lacking}")
    teams: dict[str, str] = {}
    strangers = []
    for number, row in enumerate(rows, start=line + 1):
        handles = [cell for name in who if (cell := (row.get(names[name]) or "").strip())]
        team = (row.get(names[team_column]) or "").strip()
        if not is_team(team) or not handles:
            continue
        student = find(handles)
        if student is None:
            strangers.append(handles[0])
        elif teams.setdefault(student, team) != team:
            raise TeamsError(f"{path}, line {number}: {student} is in {teams[student]!r} and in {team!r}; keep one")
    return Teams(teams, tuple(strangers))
