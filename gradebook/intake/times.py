"""When something was handed in: what knows it, and whether the times of files can be believed.

A platform stamps what it packs with the moment of packing, and a zip file's times have no zone. So tables say who
handed in when (`submitted = "times.csv"`): a CSV with a column that identifies students, as in a roster, and one of
`COLUMNS`. Times without a zone are the course's. Not for deadlines and penalties (`settings.py`).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from gradebook import text_files
from gradebook.command_name import command
from gradebook.roster import KEYS, Roster, folded
from gradebook.settings import Settings

COLUMNS = (
    *("submitted_at", "submitted at", "pushed_at", "submission time", "submission date", "date submitted"),
    *("time submitted", "submitted", "timestamp", "last modified (submission)", "zuletzt geändert (abgabe)"),
    *("dernière modification (travail remis)", "dernière modification (remise)", "última modificación (entrega)"),
    *("ultima modifica (consegna)", "última modificação (envio)", "laatst gewijzigd (inzending)"),
)
"""Titles of columns that say when, small: those of Canvas's API, GitHub's, Gradescope's and Brightspace's tables, and
of Moodle's worksheet in some of its languages."""
_WHO = ("user_id", "login_id", "sis_user_id", "sis_login_id", "Student ID", "Username", "Login", "repository", "name")
"""More titles than a roster's that identify students."""
_NEVER = ("", "-", "\u2013", "never", "n/a", "none", "no submission")
_MONTHS = {
    name: number
    for names in (
        "january february march april may june july august september october november december",
        "jan feb mar apr may jun jul aug sep oct nov dec",
        "januar februar märz april mai juni juli august september oktober november dezember",
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "januari februari maart april mei juni juli augustus september oktober november december",
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    )
    for number, name in enumerate(names.split(), start=1)
}
_WORDS = re.compile(
    r"(?:[^\W\d]+[.,]? +)?(?P<day>\d{1,2})\.? (?:de )?(?P<month>[^\W\d]+)\.?,? (?:de )?(?P<year>\d{4}),? +"
    r"(?:um |à |at )?"
    r"(?P<hour>\d{1,2})[:.h](?P<minute>\d\d)(?::(?P<second>\d\d))?(?: ?(?P<half>[AaPp])\.?[Mm]\.?)?"
)
"""`Thursday, 1 March 2026, 11:59 PM`, as Moodle writes moments for people, in several languages."""
_MONTH_FIRST = re.compile(r"(?:[^\W\d]+, +)?(?P<month>[^\W\d]+) (?P<day>\d{1,2}),? (?P<rest>\d{4}.*)")
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:\.\d+)? ?(Z|UTC|[+-]\d\d:?\d\d)?( ?[+-]\d{4})?", re.IGNORECASE
)
_ALIKE = timedelta(seconds=4)
"""A zip file's times have steps of two seconds."""
_PACKING = timedelta(minutes=10)
"""So long a platform may take to pack a class."""
_FEW = 3


class TimesError(ValueError):
    """The times cannot be used; the message is one line that says what to do."""


def parse(text: str, zone: tzinfo | None) -> datetime | None:
    """A moment as tables of platforms write it, in ISO 8601 or in words; None where it is none that can be read.

    Args:
        text: the cell.
        zone: of a moment that says none; without it such a moment cannot be read.
    """
    text = " ".join(text.split())
    if match := _ISO.fullmatch(text):
        offset = (match[3] or match[4] or "").strip().upper().replace("UTC", "Z")
        try:
            moment = datetime.fromisoformat(f"{match[1]}T{match[2]}{offset}")
        except ValueError:
            return None
    else:
        if swapped := _MONTH_FIRST.fullmatch(text):
            text = f"{swapped['day']} {swapped['month']} {swapped['rest']}"
        read = _in_words(text)
        if read is None:
            return None
        moment = read
    if moment.tzinfo is None:
        return None if zone is None else moment.replace(tzinfo=zone)
    return moment


def _in_words(text: str) -> datetime | None:
    match = _WORDS.fullmatch(text)
    month = _MONTHS.get(match["month"].casefold()) if match else None
    if match is None or month is None:
        return None
    hour = int(match["hour"])
    if match["half"]:
        hour = hour % 12 + (12 if match["half"] in "Pp" else 0)
    try:
        clock = (hour, int(match["minute"]), int(match["second"] or 0))
        return datetime(int(match["year"]), month, int(match["day"]), *clock)
    except ValueError:
        return None


@dataclass(frozen=True)
class Times:
    """What a table says."""

    of: Mapping[str, datetime]
    """By the key of the student, the last moment of each."""
    strangers: tuple[str, ...]
    """Who stands in it and is not in the class."""


def load(path: Path, roster: Roster | None, zone: tzinfo | None) -> Times:
    """Read a table of times.

    Raises:
        TimesError: it cannot be read, lacks a column, holds a moment that is none, or one without a zone where the
            course has none.
    """
    try:
        text, line = text_files.numbered_csv_text(path)
        first = text.partition("\n")[0]
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count)))
    except OSError as error:
        raise TimesError(f"{path} cannot be read: {error.strerror}") from None
    except text_files.EncodingError as error:
        raise TimesError(str(error)) from None
    except csv.Error as error:
        raise TimesError(f"{path} is no CSV file: {error}") from None
    names = {folded(name): name for name in (rows[0] if rows else {}) if name}
    when = next((names[title] for title in COLUMNS if title in names), None)
    who = [names[title] for title in dict.fromkeys(map(folded, (*KEYS, *_WHO))) if title in names]
    if when is None or not who:
        lacking = "says when; call it submitted_at" if when is None else "identifies students; call it student"
        raise TimesError(f"{path} has no column that {lacking}")
    moments: dict[str, datetime] = {}
    strangers: list[str] = []
    for number, row in enumerate(rows, start=line + 1):
        cell = (row.get(when) or "").strip()
        handles = [value for name in who if (value := (row.get(name) or "").strip())]
        if cell.casefold() in _NEVER or not handles:
            continue
        moment = parse(cell, zone)
        if moment is None:
            why = "has no time zone: set timezone in class.toml" if parse(cell, UTC) else "cannot be read as a moment"
            raise TimesError(f"{path}, line {number}: {when} {cell!r} {why}, or write it like 2026-03-01T23:59+01:00")
        owners = roster.owners(handles) if roster else ()
        keys = [owner.student for owner in owners] if roster else handles[:1]
        strangers += [] if keys else handles[:1]
        for key in keys:
            moments[key] = max(moments.get(key, moment), moment)
    return Times(moments, tuple(strangers))


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
    by_label = {one.label: one for one in stamped}
    moments = sorted(one.at for one in by_label.values())
    is_canvas = all(one.of_canvas for one in by_label.values())
    most = _PACKING if is_canvas and len(moments) >= _FEW else _ALIKE
    why = ""
    if len(moments) > 1 and moments[-1] - moments[0] <= most:
        first = settings.local(moments[0])
        why = f"all {len(moments)} files have the time {first:%Y-%m-%d %H:%M %Z}, when they were packed or downloaded"
    elif wrong := [one for one in by_label.values() if _contradicts(one, settings)]:
        one = wrong[0]
        said = "marked as late" if one.marked_late else "not marked as late"
        why = f"{one.label} is {said} by Canvas, but its time is {settings.local(one.at):%Y-%m-%d %H:%M %Z}"
    if why:
        raise TimesError(
            f'submitted = "files": {why}; so files do not say who is late. Name a table of times instead, submitted = '
            f'"times.csv" (for Canvas: {command()} export canvas CLASS --times times.csv), or leave submitted out'
        )


def _contradicts(one: Stamped, settings: Settings) -> bool:
    deadline = settings.in_time_until(one.student)
    if deadline is None or not one.of_canvas:
        return False
    # An extension may be one of ours that Canvas knows nothing of: then its mark says nothing.
    marked = one.marked_late and settings.deadline_of(one.student) == settings.deadline
    return (one.at <= deadline and marked) or (one.at > deadline and not one.marked_late)
