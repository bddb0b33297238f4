"""Gradescope's export of a programming assignment: whose folder is whose, by its `submission_metadata.yml`.

    submission_409194023:
      :submitters:
      - :name: Ada Lovelace
        :sid: '1815'
        :email: ada@example.edu
      :created_at: 2026-04-26 17:34:00.861687000 Z
      :results:
        ...

Each key is a folder beside it with one submission, already unpacked; a group has several submitters. Gradescope
publishes no description of this file. The form is that of files in public repositories, among them the tests of
programs that read such exports, and of Otter-Grader's `GradescopeParser`; read in November 2026.

Ruby's YAML writes it, one value a line. Only what is needed is read, line by line: the rest is what autograders
printed, perhaps megabytes of it, and always further to the right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gradebox.common.texts import printable

FILE = "submission_metadata.yml"
_KEY = re.compile(r"""(?P<quote>['"]?)(?P<name>[^\s'":][^'":]*)(?P=quote):\s*""")
_SECTION = re.compile(r"  (?P<name>:\w+):\s*(?P<value>.*)")
_SUBMITTER = re.compile(r"  (?P<first>- |  )(?P<name>:\w+):\s*(?P<value>.*)")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.\d+)? (Z|[+-]\d\d:\d\d)")


class ExportError(ValueError):
    """The file cannot be read; the message is one line that says what to do."""


@dataclass(frozen=True)
class Submitter:
    """One of those who handed a submission in."""

    name: str = ""
    sid: str = ""
    email: str = ""

    @property
    def key(self) -> str:
        """What to call them where no roster knows them."""
        return printable(self.sid or self.email or self.name, lines=False)

    @property
    def handles(self) -> tuple[str, ...]:
        return tuple(one for one in (self.sid, self.email, self.name) if one)


@dataclass(frozen=True)
class Exported:
    """One submission."""

    folder: str
    submitters: tuple[Submitter, ...]
    created_at: datetime | None


def load(file: Path) -> tuple[Exported, ...]:
    """Read the file.

    Raises:
        ExportError: it cannot be read, or names no submission.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise ExportError(f"{file} cannot be read: {error.strerror}") from None
    found = tuple(_submissions(lines))
    if not found:
        raise ExportError(f"{file} names no submission; export the submissions from Gradescope again")
    return found


def _submissions(lines: list[str]) -> Iterator[Exported]:
    folder, section = "", ""
    submitters: list[dict[str, str]] = []
    created_at: datetime | None = None
    for line in [*lines, "end:"]:
        if (key := _KEY.fullmatch(line)) is not None:
            if folder:
                yield Exported(folder, tuple(Submitter(**one) for one in submitters if any(one.values())), created_at)
            folder, section, submitters, created_at = key["name"], "", [], None
        elif (found := _SECTION.fullmatch(line)) is not None:
            section = found["name"]
            if section == ":created_at":
                created_at = _moment(found["value"])
        elif section == ":submitters" and (found := _SUBMITTER.fullmatch(line)) is not None:
            if found["first"] == "- ":
                submitters.append({})
            name = found["name"].removeprefix(":")
            if submitters and name in ("name", "sid", "email"):
                submitters[-1][name] = _text(found["value"])


def _text(value: str) -> str:
    """A scalar as Ruby writes it: plain, in single quotes with '' for one, or in double ones with escapes."""
    value = value.strip()
    if value in ("", "~", "null", "!!null"):
        return ""
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'").strip()
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(re.sub(r"\\x([0-9A-Fa-f]{2})", r"\\u00\1", value))).strip()
        except ValueError:
            return value[1:-1].strip()
    return value


def _moment(value: str) -> datetime | None:
    found = _MOMENT.fullmatch(_text(value))
    return None if found is None else datetime.fromisoformat(f"{found[1]}T{found[2]}{found[3]}").astimezone(UTC)
