"""`class.toml`: what an instructor decides about a class, read and checked. Not for what is decided per run.

title = "GPU computing, autumn"
labs = [1, 3]                               # default: all
device = "vgpu:T4"                          # default: auto
deadline = 2026-03-01T23:59:00+01:00        # with its time zone
submitted = "files"                         # take files' times for the time of submission; default: "unknown"
roster = "roster.csv"                       # paths are relative to this file
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

[exports]                                   # see `gradebook/exports/`
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebook.late import LateRules
from gradebox.sandbox.copying import MAX_FILES, MAX_TOTAL_BYTES

_NEVER = 100_000
"""Days, minutes or files: more than any class needs, and not too much to calculate with."""
_RATES = ("percent_per_day", "percent_per_hour", "points_per_day")


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
class Settings:
    """A class as its instructor describes it."""

    title: str = ""
    labs: tuple[int, ...] | None = None
    device: str | None = None
    deadline: datetime | None = None
    times_of_files: bool = False
    """Whether a file's time of change says when it was handed in; downloads often do not keep it."""
    roster: Path | None = None
    overrides: Path | None = None
    late: LateRules = field(default_factory=LateRules)
    extensions: Mapping[str, datetime] = field(default_factory=dict)
    git: GitSettings = field(default_factory=GitSettings)
    limits: IntakeLimits = field(default_factory=IntakeLimits)
    exports: Mapping[str, Any] = field(default_factory=dict)
    """As they stand in the file."""

    def deadline_of(self, student: str) -> datetime | None:
        """The student's own deadline, else that of the class."""
        return self.extensions.get(student, self.deadline)


def load(path: Path) -> Settings:
    """Read a file of settings.

    Raises:
        SettingsError: it cannot be read, is no valid TOML, or holds an unknown key or a value that makes no sense.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    return parse(text, path)


def parse(text: str, path: Path) -> Settings:
    """The settings in `text`, which stands in the file `path`. Raises as `load` does."""
    try:
        document = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    top = _Table(document, str(path))
    settings = Settings(
        title=top.text("title", ""),
        labs=_labs(top),
        device=top.text("device", None),
        deadline=top.moment("deadline"),
        times_of_files=top.choice("submitted", ("unknown", "files")) == "files",
        roster=_path(top, "roster", path),
        overrides=_path(top, "overrides", path),
        late=_late(top.table("late")),
        extensions=_extensions(top.table("extensions")),
        git=_git(top.table("git")),
        limits=_limits(top.table("limits")),
        exports=dict(top.take("exports", dict, "a table", {})),
    )
    top.done()
    return settings


def parse_moment(text: str, where: str) -> datetime:
    """A moment in ISO 8601 form with a time zone, `2026-03-01T23:59+01:00`.

    Raises:
        SettingsError: it is none.
    """
    try:
        return _zoned(datetime.fromisoformat(text), where)
    except ValueError as error:
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"{where} {text!r} is no moment; write it like 2026-03-01T23:59+01:00") from None


def _zoned(value: datetime, where: str) -> datetime:
    if value.tzinfo is None:
        raise SettingsError(f"{where} {value.isoformat()} has no time zone; add it, for example +01:00")
    return value


class _Table:
    """A table of the file that is read key by key; whatever is left then is unknown."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = dict(values)
        self._known: list[str] = []
        self._where = where

    def take(self, key: str, kind: type | tuple[type, ...], means: str, default: Any) -> Any:
        self._known.append(key)
        value = self._values.pop(key, default)
        if value is default:
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(f"{key} = {value!r} is not {means}")
        return value

    def text(self, key: str, default: Any) -> Any:
        return self.take(key, str, "a text", default)

    def number(self, key: str, default: int, most: int = _NEVER) -> Decimal:
        value = self.take(key, (int, Decimal), "a number", default)
        if not Decimal(value).is_finite() or not 0 <= value <= most:
            raise self.error(f"{key} = {value} must be at least 0 and at most {most}")
        return Decimal(value)

    def moment(self, key: str) -> datetime | None:
        value = self.take(key, datetime, "a date with a time, like 2026-03-01T23:59:00+01:00", None)
        return None if value is None else _zoned(value, f"{self._where}: {key}")

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """The first one is the default."""
        value: str = self.text(key, choices[0])
        if value not in choices:
            raise self.error(f"{key} = {value!r} is not one of {', '.join(choices)}")
        return value

    def table(self, key: str) -> _Table:
        return _Table(self.take(key, dict, "a table", {}), f"{self._where}, [{key}]")

    def names(self) -> list[str]:
        return list(self._values)

    def done(self) -> None:
        if self._values:
            raise self.error(f"does not know {next(iter(self._values))!r}; it has {', '.join(self._known)}", "")

    def error(self, text: str, colon: str = ":") -> SettingsError:
        return SettingsError(f"{self._where}{colon} {text}")


def _labs(top: _Table) -> tuple[int, ...] | None:
    labs = top.take("labs", list, "a list of numbers, like [1, 3]", None)
    if labs is None:
        return None
    if not labs or not all(isinstance(number, int) and not isinstance(number, bool) for number in labs):
        raise top.error(f"labs = {labs!r} is not a list of numbers, like [1, 3]")
    return tuple(sorted(set(labs)))


def _path(top: _Table, key: str, file: Path) -> Path | None:
    value = top.text(key, None)
    return None if value is None else file.parent / value


def _late(table: _Table) -> LateRules:
    grace = table.number("grace_minutes", 0)
    rates = {name: table.number(name, 0) for name in _RATES}
    if sum(rate > 0 for rate in rates.values()) > 1:
        raise table.error(f"set only one of {', '.join(_RATES)}")
    at_most = table.number("at_most_percent", 100, 100)
    days = table.number("no_credit_after_days", _NEVER)
    table.done()
    return LateRules(
        grace=timedelta(minutes=float(grace)),
        **rates,
        at_most_percent=at_most,
        no_credit_after=None if days == _NEVER else timedelta(days=float(days)),
    )


def _extensions(table: _Table) -> dict[str, datetime]:
    return {student: moment for student in table.names() if (moment := table.moment(student)) is not None}


def _git(table: _Table) -> GitSettings:
    protocols = table.take("protocols", list, 'a list of names, like ["https", "ssh"]', ["https", "ssh"])
    known = ("https", "ssh", "http", "git", "file")
    for name in protocols:
        if name not in known:
            raise table.error(f"protocols: {name!r} is not one of {', '.join(known)}")
    branch = table.text("branch", None)
    only_in_time = table.choice("commits", ("in_time", "latest")) == "in_time"
    table.done()
    return GitSettings(branch=branch, only_in_time=only_in_time, protocols=tuple(protocols))


def _limits(table: _Table) -> IntakeLimits:
    minutes = table.number("minutes_per_submission", 20)
    files = table.number("files", MAX_FILES, MAX_FILES)
    mebibytes = table.number("mebibytes", MAX_TOTAL_BYTES // 2**20, MAX_TOTAL_BYTES // 2**20)
    table.done()
    if not (minutes and files and mebibytes):
        raise table.error("a limit of 0 would refuse every submission")
    return IntakeLimits(files=int(files), bytes=int(mebibytes * 2**20), seconds_per_submission=float(minutes) * 60)
