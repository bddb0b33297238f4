"""`class.toml`: what an instructor decides about a class, read and checked. Not for what is decided per run.

title = "GPU computing, autumn"
labs = [1, 3]                               # default: all
device = "vgpu:T4"                          # default: auto
timezone = "Europe/Berlin"                  # the course's wall clock; default: the deadline's offset, all year
deadline = 2026-03-01T23:59:00              # in that zone; without `timezone` write +01:00
submitted = "times.csv"                     # who handed in when; or "files": files' times; default: what platforms say
roster = "roster.csv"                       # paths are relative to this file
teams = "groups.csv"                        # who works together; or a column `team` of the roster
overrides = "overrides.toml"

[late]
grace_minutes = 15
percent_per_day = 10                        # or percent_per_hour, or points_per_day
at_most_percent = 50
no_credit_after_days = 7

[extensions]                                # deadlines of their own
ada = 2026-03-08T23:59:00+01:00

[git]
branch = "main"                             # default: the repository's own
commits = "in_time"                         # the last one in time, where there is one; or "latest"
protocols = ["https", "ssh"]                # that addresses in a list may use

[limits]
minutes_per_submission = 20
files = 4000
mebibytes = 64

[by_hand]
reports = true                              # people grade reports instead of a check, see docs/by-hand-reports.md
report_points = { lab1 = 5 }                # default: those of the lab's automatic check

[exports]                                   # see `gradebook/export/`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

from gradebook import course_zones
from gradebook.lateness import LateRules, end_of_minute
from gradebook.text_files import of_windows
from gradebox.common import reading
from gradebox.common.reading import Document
from gradebox.sandbox.copying import MAX_FILES, MAX_TOTAL_BYTES

_NEVER = 100_000
"""Days, minutes or files: more than any class needs, and not too much to calculate with."""
_FILES, _UNKNOWN = "files", "unknown"
"""What `submitted` may be instead of a file."""
RATES = ("percent_per_day", "percent_per_hour", "points_per_day")


class SettingsError(ValueError):
    """`class.toml` cannot be used; the message is one line that names the key and what to do."""


@dataclass(frozen=True, kw_only=True)
class GitSettings:
    """Which commit of a repository is the submission, and where repositories may come from."""

    branch: str | None = None
    """None: the branch that the repository itself names as its own."""
    only_in_time: bool = True
    """Take the last commit before the deadline where there is one; otherwise the last one, which may be late."""
    protocols: tuple[str, ...] = ("https", "ssh")


@dataclass(frozen=True, kw_only=True)
class IntakeLimits:
    """What one submission may hold, and how long its grading may take."""

    files: int = MAX_FILES
    bytes: int = MAX_TOTAL_BYTES
    seconds_per_submission: float = 1200.0


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """What people grade instead of checks."""

    reports: bool = False
    """Whether people give the points of each lab's report."""
    report_points: Mapping[str, Decimal] = field(default_factory=dict)
    """By lab, `lab1`: what its report is worth, if not what its automatic check is."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A class as its instructor describes it."""

    title: str = ""
    labs: tuple[int, ...] | None = None
    device: str | None = None
    deadline: datetime | None = None
    timezone: ZoneInfo | None = None
    """Of the course; None where nobody said it."""
    times_of_files: bool = False
    """Whether a file's time of change says when it was handed in; downloads often do not keep it."""
    times: Path | None = None
    """A table that says who handed in when."""
    roster: Path | None = None
    teams: Path | None = None
    overrides: Path | None = None
    late: LateRules = field(default_factory=LateRules)
    extensions: Mapping[str, datetime] = field(default_factory=dict)
    git: GitSettings = field(default_factory=GitSettings)
    limits: IntakeLimits = field(default_factory=IntakeLimits)
    by_hand: ByHand = field(default_factory=ByHand)
    exports: Mapping[str, Any] = field(default_factory=dict)
    """As they stand in the file."""

    @property
    def zone(self) -> tzinfo | None:
        """Of times that say none: the course's, else the deadline's."""
        return self.timezone or (self.deadline.tzinfo if self.deadline else None)

    def local(self, moment: datetime) -> datetime:
        """A moment as the course's clocks show it."""
        return moment.astimezone(self.timezone) if self.timezone else moment

    def deadline_of(self, student: str) -> datetime | None:
        """The student's own deadline, else that of the class."""
        return self.extensions.get(student, self.deadline)

    def in_time_until(self, student: str) -> datetime | None:
        """Up to when a commit of this student is in time: the deadline with its grace."""
        deadline = self.deadline_of(student)
        return None if deadline is None else end_of_minute(deadline) + self.late.grace


def load(path: Path) -> Settings:
    """Read a file of settings.

    Raises:
        SettingsError: it cannot be read, is no valid TOML, or holds an unknown key or a value that makes no sense.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        number, message = reading.not_utf8(path.read_bytes())
        raise SettingsError(f"{path}:{number}: {message}") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}{of_windows(path)}") from None
    return parse(text, path)


@dataclass(frozen=True)
class _Late:
    grace_minutes: Decimal = Decimal(0)
    percent_per_day: Decimal = Decimal(0)
    percent_per_hour: Decimal = Decimal(0)
    points_per_day: Decimal = Decimal(0)
    at_most_percent: Decimal = Decimal(100)
    no_credit_after_days: Decimal = Decimal(_NEVER)


@dataclass(frozen=True)
class _Git:
    branch: str | None = None
    commits: Literal["in_time", "latest"] = "in_time"
    protocols: tuple[Literal["https", "ssh", "http", "git", "file"], ...] = ("https", "ssh")


@dataclass(frozen=True)
class _Limits:
    minutes_per_submission: Decimal = Decimal(20)
    files: int = MAX_FILES
    mebibytes: Decimal = Decimal(MAX_TOTAL_BYTES // 2**20)


@dataclass(frozen=True)
class _File:
    """The keys of `class.toml`."""

    title: str = ""
    labs: tuple[int, ...] | None = None
    device: str | None = None
    deadline: datetime | None = None
    timezone: str = ""
    submitted: str = "unknown"
    roster: Path | None = None
    teams: Path | None = None
    overrides: Path | None = None
    late: _Late = field(default_factory=_Late)
    extensions: Mapping[str, datetime] = field(default_factory=dict)
    git: _Git = field(default_factory=_Git)
    limits: _Limits = field(default_factory=_Limits)
    by_hand: ByHand = field(default_factory=ByHand)
    exports: Mapping[str, Any] = field(default_factory=dict)


def parse(text: str, path: Path) -> Settings:
    """The settings in `text`, which stands in the file `path`. Raises as `load` does."""
    try:
        document = reading.toml(path, text)
        _check_one_deadline(document)
        _check_tables(document)
        content = reading.into(_File, document)
        zone = course_zones.zone(document, content.timezone)
        _check_offsets(document, content, zone)
        content = _placed(content, zone)
        _check(document, content)
    except reading.ReadingError as error:
        where, twice, rest = str(error).partition(": not valid TOML: Cannot overwrite a value")
        where = f"{path}:{len(text.splitlines())}" if "end of document" in rest else where
        raise SettingsError(f"{where}: a key stands twice in one table; keep one" if twice else str(error)) from None
    late, git, limits = content.late, content.git, content.limits
    days = late.no_credit_after_days
    return Settings(
        title=content.title,
        labs=None if content.labs is None else tuple(sorted(set(content.labs))),
        device=content.device,
        deadline=content.deadline,
        timezone=zone,
        times_of_files=content.submitted == _FILES,
        times=None if content.submitted in (_FILES, _UNKNOWN) else _beside(path, Path(content.submitted)),
        roster=content.roster and _beside(path, content.roster),
        teams=content.teams and _beside(path, content.teams),
        overrides=content.overrides and _beside(path, content.overrides),
        late=LateRules(
            grace=timedelta(minutes=float(late.grace_minutes)),
            percent_per_day=late.percent_per_day,
            percent_per_hour=late.percent_per_hour,
            points_per_day=late.points_per_day,
            at_most_percent=late.at_most_percent,
            no_credit_after=None if days == _NEVER else timedelta(days=float(days)),
            zone=zone,
        ),
        extensions=content.extensions,
        git=GitSettings(branch=git.branch, only_in_time=git.commits == "in_time", protocols=git.protocols),
        limits=IntakeLimits(
            files=limits.files,
            bytes=int(limits.mebibytes * 2**20),
            seconds_per_submission=float(limits.minutes_per_submission) * 60,
        ),
        by_hand=content.by_hand,
        exports=dict(content.exports),
    )


def _check_tables(document: Document) -> None:
    """Refuse a value in the place of a table, and keys of the whole file below the name of a table."""
    labs = document.data.get("labs")
    if labs is not None and (not isinstance(labs, list) or any(type(number) is not int for number in labs)):
        raise document.error(("labs",), f"labs = {labs!r} is no list of numbers: write labs = [1], or labs = [1, 3]")
    own = {field.name for field in fields(_File)}
    for table, known in (
        ("late", _Late),
        ("extensions", None),
        ("git", _Git),
        ("limits", _Limits),
        ("by_hand", ByHand),
    ):
        value = document.data.get(table, {})
        if not isinstance(value, dict):
            text = f"{table} = {value!r} is no table: write [{table}] in a line, and its keys in the lines below"
            raise document.error((table,), text)
        theirs = {field.name for field in fields(known)} if known else set()
        if misplaced := next((key for key in value if key in own and key not in theirs), None):
            text = f"{misplaced} is below [{table}], and so belongs to it: write it above the first line with a ["
            raise document.error((table, misplaced), text)


def _beside(path: Path, named: Path) -> Path:
    """A file that `class.toml` names: from its own folder on, or from the home folder."""
    try:
        return path.parent / named.expanduser()
    except RuntimeError:  # nobody has such a home
        return path.parent / named


def _check_one_deadline(document: Document) -> None:
    """Refuse deadlines of single labs or sections, which people write in several ways."""
    for key in ("deadline", "deadlines", "due_dates"):
        value = document.data.get(key)
        if isinstance(value, (dict, list)) or (value is not None and key != "deadline"):
            text = f"{key}: a class has one deadline. If each lab has its own, grade each as a class of its own, with a"
            text += " class.toml (labs = [1]) and an --out for it. For some students, write [extensions]"
            raise document.error((key,), text)
    extensions = document.data.get("extensions")
    for name, value in extensions.items() if isinstance(extensions, dict) else ():
        if isinstance(value, dict) and any(re.fullmatch(r"lab\d+", key) for key in value):
            text = f"{name} has an extension for a lab, but all labs of a class have one deadline: write {name} = "
            raise document.error(("extensions", name), f"{text}2026-03-08T23:59:00, or grade that lab as a class")


def _check_offsets(document: Document, content: _File, zone: ZoneInfo | None) -> None:
    """Refuse a moment that the course's clocks skip, or whose offset its zone has on another day of the year.

    Such a deadline was written before the clocks change for a day after it. It would end an hour off. UTC, and offsets
    of other zones, are meant.
    """
    places: dict[tuple[str, ...], datetime] = {
        ("extensions", name): moment for name, moment in content.extensions.items()
    }
    if content.deadline is not None:
        places[("deadline",)] = content.deadline
    for place, moment in places.items():
        if zone is not None and moment.tzinfo is None:
            there = moment.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None)
            if there != moment:
                text = f"{place[-1]} = {moment.isoformat()}: {zone.key} has no such time, because the clocks go forward"
                raise document.error(place, f"{text}; write {there.isoformat()} or an earlier one")
            first, second = (moment.replace(tzinfo=zone, fold=fold).isoformat() for fold in (0, 1))
            if first != second:
                text = f"{place[-1]} = {moment.isoformat()}: {zone.key} has this time twice, because the clocks go back"
                raise document.error(place, f"{text}; write {first}, or {second} for the second")
        if zone is None or not moment.utcoffset():
            continue
        clock = moment.replace(tzinfo=zone)
        offsets = {clock.replace(month=month, day=1).utcoffset() for month in range(1, 13)}
        # In the hour that the clocks repeat both offsets are right.
        if moment.utcoffset() in offsets - {clock.utcoffset(), clock.replace(fold=1).utcoffset()}:
            plain = clock.replace(tzinfo=None).isoformat()
            text = f"{place[-1]} = {moment.isoformat()}, but {zone.key} has {clock.isoformat()[-6:]} on that day"
            raise document.error(place, f"{text}; write the time without an offset, {plain}, or correct the offset")


def _placed(content: _File, zone: ZoneInfo | None) -> _File:
    """The file with all moments in the course's zone, where it names one."""

    def placed(moment: datetime) -> datetime:
        return moment.replace(tzinfo=zone) if moment.tzinfo is None else moment.astimezone(zone)

    if zone is None:
        return content
    return replace(
        content,
        deadline=content.deadline and placed(content.deadline),
        extensions={name: placed(moment) for name, moment in content.extensions.items()},
    )


def _check(document: Document, content: _File) -> None:
    """Raise ReadingError for what types do not say."""
    if content.submitted not in (_FILES, _UNKNOWN) and not content.submitted.lower().endswith(".csv"):
        text = f"submitted = {content.submitted!r}: expected {_FILES!r}, {_UNKNOWN!r} or a .csv file of times"
        raise document.error(("submitted",), text)
    if not content.title.isprintable():
        raise document.error(("title",), f"title = {content.title!r} must be one line, without tabs")
    if content.overrides is not None and content.overrides.suffix.lower() != ".toml":
        text = f'overrides = "{content.overrides}": expected a .toml file, as review --override writes it, row by row'
        raise document.error(("overrides",), text)
    if content.labs is not None and not content.labs:
        raise document.error(("labs",), "labs = [] is not a list of numbers, like [1, 3]")
    if content.by_hand.report_points and not content.by_hand.reports:
        raise document.error(("by_hand",), "report_points is for reports that people grade: set reports = true")
    moments: dict[tuple[str, ...], datetime] = {
        ("extensions", name): moment for name, moment in content.extensions.items()
    }
    if content.deadline is not None:
        moments[("deadline",)] = content.deadline
    for place, moment in moments.items():
        if moment.tzinfo is None:
            text = f"{place[-1]} {moment.isoformat()} has no time zone; add it, for example +01:00, or set timezone"
            raise document.error(place, text)
    percents = dict.fromkeys(("at_most_percent", "percent_per_day", "percent_per_hour"), 100)
    most = percents | {"files": MAX_FILES, "mebibytes": MAX_TOTAL_BYTES // 2**20}
    for table in ("late", "limits"):
        for name, value in vars(getattr(content, table)).items():
            if not Decimal(value).is_finite() or not 0 <= value <= most.get(name, _NEVER):
                limit = most.get(name, _NEVER)
                raise document.error((table, name), f"{name} = {value} must be at least 0 and at most {limit}")
            if table == "limits" and not value:
                raise document.error((table, name), f"{name} = 0: a limit of 0 would refuse every submission")
    if sum(getattr(content.late, rate) > 0 for rate in RATES) > 1:
        raise document.error(("late",), f"set only one of {', '.join(RATES)}")


def parse_moment(text: str, where: str) -> datetime:
    """A moment in ISO 8601 form with a time zone, `2026-03-01T23:59+01:00`.

    Raises:
        SettingsError: it is none.
    """
    try:
        if date.fromisoformat(text[:10]).isoformat() == text:
            raise SettingsError(f"{where} {text} is a day without a time; write it like {text}T23:59+01:00")
        return _zoned(datetime.fromisoformat(text), where)
    except ValueError as error:
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"{where} {text!r} is no moment; write it like 2026-03-01T23:59+01:00") from None


def _zoned(value: datetime, where: str) -> datetime:
    if value.tzinfo is None:
        raise SettingsError(f"{where} {value.isoformat()} has no time zone; add it, for example +01:00")
    return value
