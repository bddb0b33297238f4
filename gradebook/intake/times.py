"""When something was handed in: what knows it, and whether the times of files can be believed.

A platform stamps what it packs with the moment of packing, and a zip file's times have no zone. So tables say who
handed in when (`submitted = "times.csv"`): a CSV with a column that identifies students, as in a roster, and one of
`COLUMNS`. With a column `commit` as well it is a table of pushes, a row for each; the last one in time decides which
commit counts. Times without a zone are the course's. Not for deadlines and penalties (`settings.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from gradebook import csv_tables, moodle_words
from gradebook.command_name import command
from gradebook.csv_tables import Row, Table
from gradebook.intake.commits import Push
from gradebook.intake.moments import MomentError, read, without_zone
from gradebook.intake.strangers import why as why_unknown
from gradebook.lateness import end_of_minute
from gradebook.repository_names import repository_name
from gradebook.roster import KEYS, NAME_COLUMNS, Roster, RosterError, folded
from gradebook.settings import Settings
from gradebook.text_files import some

COLUMNS = (
    *("submitted_at", "submitted at", "pushed_at", "submission time", "submission date", "date submitted"),
    *("submission_timestamp", "submission timestamp", "submitted on"),
    *("time submitted", "submitted", "timestamp", *moodle_words.MODIFIED),
)
"""Titles of columns that say when, small: those of Canvas's API, GitHub's, Gradescope's and Brightspace's tables, and
of Moodle's worksheet."""
_WHO = ("login_id", "user_id", "sis_user_id", "sis_login_id", "Login", "repository", *NAME_COLUMNS)
"""More titles than a roster's that identify students."""
_REPOSITORY, _PUSHED_AT = "repository", "pushed_at"
_COMMITS, _BRANCHES = ("commit", "after"), ("branch", "ref")
"""Of a table of pushes: `after` and `ref` are GitHub's own words."""
_LIKE_TIME = re.compile(r"submission time|submitted|time ?stamp|\bdate\b", re.IGNORECASE)
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_NEVER = (
    *("", "-", "\u2013", "never", "n/a", "none", "no submission", "not submitted"),
    *("null", "nil", "nat", "invalid date", "0000-00-00 00:00:00"),
)
"""What people and programs write for no moment."""
_ALIKE = timedelta(seconds=4)
"""A zip file's times have steps of two seconds."""
_PACKING = timedelta(minutes=10)
"""So long a platform may take to pack a class."""
_FEW = 3


class TimesError(ValueError):
    """The times cannot be used; the message is one line that says what to do."""


@dataclass(frozen=True)
class Times:
    """What a table says."""

    of: Mapping[str, datetime] = field(default_factory=dict)
    """By the key of the student, the last moment of each; empty for a table of pushes."""
    first: Mapping[str, datetime] = field(default_factory=dict)
    """The first moment of each."""
    strangers: tuple[str, ...] = ()
    """Who stands in it and is not in the class."""
    pushes: Mapping[str, tuple[Push, ...]] = field(default_factory=dict)
    """By the name of the repository, or else by what the table calls students; all small. Of a table of pushes."""
    is_last_push: bool = False
    """Whether a moment is that of the last push, which may have brought more than what counts."""


def load(path: Path, roster: Roster | None, zone: tzinfo | None) -> Times:
    """Read a table of times.

    Raises:
        TimesError: it cannot be read, lacks a column, holds a moment that is none, or one without a zone where the
            course has none.
    """
    try:
        table = csv_tables.read(path)
    except csv_tables.TableError as error:
        raise TimesError(str(error)) from None
    names = {folded(without_zone(title, zone)[0]): title for title in table.titles if title}
    names |= {folded(title): title for title in table.titles if title}
    when = next((names[title] for title in COLUMNS if title in names), None)
    who = [names[title] for title in dict.fromkeys(map(folded, (*KEYS, *_WHO))) if title in names]
    if when is None or not who:
        like = next((f" (perhaps {title!r})" for title in table.titles if _LIKE_TIME.search(title)), "")
        lacking = f"says when; call it submitted_at{like}" if when is None else "identifies students; call it student"
        there = some([title for title in table.titles if title], most=12)
        raise TimesError(f"{path} has no column that {lacking}. Its first line must have the titles, and has {there}")
    zone = without_zone(when, zone)[1]
    commit = next((names[title] for title in _COMMITS if title in names), "")
    if any(row.cell(commit) for row in table.rows if commit):  # a table of our grades has that column, and may be empty
        branch = next((names[title] for title in _BRANCHES if title in names), "")
        address = names.get(_REPOSITORY, "")
        return Times(pushes=_pushes(path, table, zone, when, commit, branch, address or who[0]))
    moments: dict[str, datetime] = {}
    first: dict[str, datetime] = {}
    strangers: list[str] = []
    for row in table.rows:
        handles = [value for name in who if (value := row.cell(name))]
        if row.cell(when).casefold() in _NEVER:
            continue
        if not handles:
            raise TimesError(
                f"{path}, line {row.line}: it has a time and names no student; write who it is into the column "
                f"{who[0]}, or remove the row"
            )
        moment = _moment(row, when, zone, path)
        if roster is None:
            keys = [repository_name(handles[0]) if folded(who[0]) == _REPOSITORY else handles[0]]
        else:
            try:
                keys = [owner.student for owner in roster.owners_of_row({name: row.cell(name) for name in who})]
            except RosterError as error:
                raise TimesError(f"{path}, line {row.line}: {error}") from None
        strangers += [] if keys else handles[:1]
        for key in keys:
            moments[key] = max(moments.get(key, moment), moment)
            first[key] = min(first.get(key, moment), moment)
    if not moments:
        what = f"nobody's row has a moment in its column {when}" if not strangers else "none of its rows is a student's"
        reason = why_unknown(roster, strangers) if roster else ""
        raise TimesError(f"{path} says of nobody when they handed in: {what}{reason}")
    return Times(moments, first, tuple(strangers), is_last_push=folded(when) == _PUSHED_AT)


def _pushes(
    path: Path, table: Table, zone: tzinfo | None, when: str, commit: str, branch: str, whose: str
) -> dict[str, tuple[Push, ...]]:
    """The pushes of each repository or student. `when` to `whose` are titles of columns."""
    pushes: dict[str, list[Push]] = {}
    for row in table.rows:
        name, pushed = repository_name(row.cell(whose)), row.cell(commit)
        if not _COMMIT.fullmatch(pushed) or not name:
            lacking = f"{commit} {pushed!r} is no whole commit, of 40 digits" if name else f"{whose} is empty"
            raise TimesError(f"{path}, line {row.line}: {lacking}; so nobody knows whose push it is. Correct the row")
        # GitHub writes zeros for the commit of a branch that was deleted.
        if set(pushed) != {"0"}:
            push = Push(pushed.lower(), _moment(row, when, zone, path), row.cell(branch))
            pushes.setdefault(folded(name), []).append(push)
    if not pushes:
        raise TimesError(f"{path} holds no push, only branches that were deleted")
    return {name: tuple(theirs) for name, theirs in pushes.items()}


def _moment(row: Row, when: str, zone: tzinfo | None, path: Path) -> datetime:
    try:
        return read(row.cell(when), zone, f"{path}, line {row.line}: {when}")
    except MomentError as error:
        raise TimesError(str(error)) from None


@dataclass(frozen=True)
class Stamped:
    """A submission whose time is that of its files."""

    student: str
    label: str
    at: datetime
    marked_late: bool
    of_canvas: bool


def check_files(stamped: Sequence[Stamped], settings: Settings) -> None:
    """Refuse times of files that are the moment of a download, and so make a whole class late, or nobody.

    Raises:
        TimesError: all are alike, or they contradict what Canvas marked as late.
    """
    by_label = {stamp.label: stamp for stamp in stamped}
    moments = sorted(stamp.at for stamp in by_label.values())
    is_canvas = all(stamp.of_canvas for stamp in by_label.values())
    most = _PACKING if is_canvas and len(moments) >= _FEW else _ALIKE
    why = ""
    alike = max((_within(moments, first, most) for first in moments), key=len, default=[])
    count = len(alike)
    if count == len(moments) > 1 or (count >= _FEW and count * 2 > len(moments)):
        first = settings.local(alike[0])
        how_many = f"all {count}" if count == len(moments) else f"{count} of {len(moments)}"
        why = f"{how_many} files have the time {first:%Y-%m-%d %H:%M %Z}, when they were packed or downloaded"
    elif wrong := [stamp for stamp in by_label.values() if _contradicts(stamp, settings)]:
        stamp = wrong[0]
        said = "marked as late" if stamp.marked_late else "not marked as late"
        why = f"{stamp.label} is {said} by Canvas, but its time is {settings.local(stamp.at):%Y-%m-%d %H:%M %Z}"
    if why:
        raise TimesError(
            f'submitted = "files": {why}; so files do not say who is late. Name a table of times instead, submitted = '
            f'"times.csv" (for Canvas: {command()} export canvas CLASS --times times.csv), or leave submitted out'
        )


def _within(moments: Sequence[datetime], first: datetime, most: timedelta) -> list[datetime]:
    """Those from `first` on, as long as `most`."""
    return [moment for moment in moments if timedelta(0) <= moment - first <= most]


def notices(
    tabled: Sequence[Stamped], stamped: Sequence[Stamped], table: Times, roster: Roster | None, settings: Settings
) -> list[str]:
    """What an instructor should know of times by a table or the roster (`tabled`) and by files (`stamped`)."""
    texts = contradictions(tabled, settings), repeated(tabled, settings), other_than_roster(table.of, roster, settings)
    return [text for text in (*texts, of_files(stamped, settings)) if text]


def of_files(stamped: Sequence[Stamped], settings: Settings) -> str:
    """What to say where times are those of files; empty where they are not."""
    zone = settings.zone or "this machine's time zone"
    return f"times of submission are those of files; zip files' are taken as {zone}" if stamped else ""


def contradictions(stamped: Sequence[Stamped], settings: Settings) -> str:
    """What to say where a table's times and Canvas's marks disagree, perhaps by a time zone; empty if they agree."""
    wrong = [one for one in stamped if _contradicts(one, settings)]
    if not any(one.marked_late for one in stamped):  # Canvas may know no deadline
        wrong = []
    parts = [
        f"{mark} {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}{but}"
        for is_late, mark, but in (
            (True, "marked as late:", ", who are in time by the table"),
            (False, "not marked as late:", ", who are late by the table"),
        )
        if (names := sorted({one.student for one in wrong if one.marked_late == is_late}))
    ]
    return f"Canvas does not agree on who is late. {'; '.join(parts)}. Check timezone and deadline" if parts else ""


def other_than_roster(of_table: Mapping[str, datetime], roster: Roster | None, settings: Settings) -> str:
    """What to say where a table and the roster do not agree on who is late; the table counts. Empty if they agree."""
    said = []
    for entry in roster.entries if roster else ():
        at, until = of_table.get(entry.student), settings.in_time_until(entry.student)
        if at and until and entry.submitted_at and (at <= until) != (entry.submitted_at <= until):
            times = (f"{settings.local(moment):%Y-%m-%d %H:%M}" for moment in (at, entry.submitted_at))
            said.append(f"{entry.student} ({', and '.join(times)} in the roster)")
    if not said:
        return ""
    return (
        f"the table of times and the roster do not agree on who is late, and the table counts: {some(said)}. Remove "
        "submitted from class.toml if the roster should count"
    )


def repeated(stamped: Sequence[Stamped], settings: Settings) -> str:
    """What to say of times without a zone in the hour that the clocks repeat; empty if there are none.

    Such a time is two moments. Python takes the first (`fold=0`), which is the student's favour.
    """
    zone = settings.timezone
    students = sorted(
        {one.student for one in stamped if one.at.tzinfo is zone and _is_repeated(one.at)} if zone else ()
    )
    if not students or settings.deadline is None:
        return ""
    return (
        f"the clocks of {zone} went back when these students submitted, so their times, which name no zone, are two "
        f"moments, and the first counts, in their favour: {some(students)}. A table whose times have a zone decides it"
    )


def _is_repeated(moment: datetime) -> bool:
    return moment.replace(fold=0).astimezone(UTC) < moment.replace(fold=1).astimezone(UTC)


def _contradicts(one: Stamped, settings: Settings) -> bool:
    deadline = settings.deadline_of(one.student)
    if deadline is None or not one.of_canvas:
        return False
    deadline = end_of_minute(deadline)
    # An extension may be one of ours that Canvas knows nothing of: then its mark says nothing.
    marked = one.marked_late and settings.deadline_of(one.student) == settings.deadline
    return (one.at <= deadline and marked) or (one.at > deadline and not one.marked_late)
