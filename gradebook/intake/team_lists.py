"""Reading who works together: a CSV file of Canvas, Moodle or one's own.

A file of teams has a column that identifies students (those of a roster, or Canvas's `login_id`, `user_id`,
`canvas_user_id`) and one that names teams. Canvas's list of a group set has `name,canvas_user_id,user_id,login_id,
sections,group_name,canvas_group_id,group_id` (its guide "How do I import groups in a group set?"); Moodle's list of
participants has `Groups`, where a team is the whole cell. Not for whose a submission is (`handed_in.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gradebook import column_titles, csv_tables
from gradebook.csv_tables import Row, Table
from gradebook.roster import KEYS, NAME_COLUMNS, TEAM_COLUMN, TEAM_COLUMNS, RosterError, folded, is_team, team_column

_CANVAS_GROUP = "canvas_group_id"
_MEMBERS = ("login_id", "user_id", "canvas_user_id")
_MEMBER = re.compile(r"(?:team ?)?(?:member|student|partner|person|mitglied)[ _#-]*\d+", re.IGNORECASE)
"""Titles in a list with a row for each team."""


class TeamsError(ValueError):
    """The file cannot be used; the message is one line that says what to do."""


@dataclass(frozen=True)
class Teams:
    """The team of each student, by the roster's key."""

    of: Mapping[str, str]
    strangers: tuple[str, ...] = ()
    """Who stands in the file and not in the roster: they left, or the file is another course's."""


def load(path: Path, columns: Iterable[str], find: Callable[[Mapping[str, str]], str | None]) -> Teams:
    """Read a file.

    Args:
        path: the file.
        columns: a roster's columns that identify students.
        find: the roster's key of whose row it is, by what stands in those columns.

    Raises:
        TeamsError: it cannot be read, lacks a column, or puts somebody into two teams.
    """
    try:
        table = csv_tables.read(path)
    except csv_tables.TableError as error:
        raise TeamsError(str(error)) from None
    table = _row_for_each_student(table)
    columns = tuple(dict.fromkeys((*columns, *_MEMBERS)))
    meant = column_titles.as_known(table.titles, (*columns, *TEAM_COLUMNS))
    column = team_column(meant.values())
    who = [name for name in columns if name in meant.values()]
    who += [title for title in meant.values() if folded(title) in NAME_COLUMNS and title not in who]
    if column is None or not who:
        lacking = "names teams" if column is None else "identifies students"
        wanted = "team" if column is None else "student"
        there = ", ".join(filter(None, table.titles))
        raise TeamsError(
            f"{path} has no column that {lacking}, only {there}; the first line has the titles, so call one of them "
            f"{wanted}. The list has a row for each student, or a row for each team with the columns member1, member2, "
            "..."
        )
    teams: dict[str, str] = {}
    strangers = []
    for row in table.rows:
        row_cells = column_titles.renamed(row.cells, meant)
        cells = {name: cell for name in who if (cell := row_cells.get(name, ""))}
        team = row_cells.get(column, "")
        if not is_team(team):
            continue
        if not cells and _CANVAS_GROUP in row_cells:
            continue  # Canvas lists groups that have no members yet
        if not cells:
            raise TeamsError(
                f"{path}, line {row.line}: it has the team {team!r} and names nobody; write who it is into the column "
                f"{who[0]}, or remove the row"
            )
        try:
            student = find(cells)
        except RosterError as error:
            raise TeamsError(f"{path}, line {row.line}: {error}") from None
        if student is None:
            strangers.append(next(iter(cells.values())))
        elif folded(teams.setdefault(student, team)) != folded(team):
            raise TeamsError(f"{path}, line {row.line}: {student} is in {teams[student]!r} and in {team!r}; keep one")
    return Teams(teams, tuple(strangers))


def _row_for_each_student(table: Table) -> Table:
    """The table; one that has a row for each team and a column for each member has a row for each member then."""
    members = [title for title in table.titles if _MEMBER.fullmatch(title)]
    column = team_column(column_titles.as_known(table.titles).values())
    meant = column_titles.as_known(table.titles)
    if len(members) < 2 or column is None or set(KEYS) & set(meant.values()):
        return table
    rows = [(row, column_titles.renamed(row.cells, meant)[column]) for row in table.rows]
    made = [
        Row(row.line, {"student": cell, TEAM_COLUMN: team})
        for row, team in rows
        for title in members
        if (cell := row.cell(title))
    ]
    return Table(("student", TEAM_COLUMN), tuple(made))
