"""What was sent to Canvas before, kept next to the gradebook: so that a run knows its own grades and comments again.

One file for each assignment, `canvas/HOST-COURSE-ASSIGNMENT.json`, replaced whole before and after every request that
changes something. A run that is killed loses nothing: it has what was under way, and the next run asks Canvas about
that.
Not for grades themselves; those are in the gradebook.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

from gradebook.plugins.canvas_push.client import PushError
from gradebook.text_files import cause, locked, write_file
from gradebox.common import reading

FOLDER = "canvas"


@dataclass(frozen=True)
class Mark:
    """What somebody has in an assignment: points, nothing yet, or leave not to do it."""

    score: Decimal | None = None
    excused: bool = False

    def same_as(self, other: Mark) -> bool:
        """Canvas keeps points as binary fractions, we as hundredths."""
        if self.excused or other.excused:
            return self.excused == other.excused
        if self.score is None or other.score is None:
            return self.score is other.score
        return abs(self.score - other.score) < _HALF_A_CENT

    @property
    def empty(self) -> bool:
        return self.score is None and not self.excused


_HALF_A_CENT = Decimal("0.005")


@dataclass(frozen=True)
class Sent:
    """What one student was sent."""

    student: str
    score: Decimal | None = None
    excused: bool = False
    marked: bool = False
    """Whether there was a mark at all, and not only comments."""
    comments: tuple[str, ...] = ()
    """Digests, the latest one last."""

    @property
    def mark(self) -> Mark | None:
        return Mark(self.score, self.excused) if self.marked else None

    def with_mark(self, mark: Mark) -> Sent:
        return replace(self, score=mark.score, excused=mark.excused, marked=True)

    def with_comment(self, digest: str) -> Sent:
        return replace(self, comments=(*(other for other in self.comments if other != digest), digest))


@dataclass(frozen=True)
class Pending:
    """What is under way: Canvas may have got it, or carried it out, or not."""

    began: datetime
    users: Mapping[str, Sent]
    """By number on Canvas, as they will be."""
    progress: int | None = None
    """None until Canvas has answered."""


@dataclass(frozen=True)
class Memory:
    """All that was sent to one assignment."""

    students: Mapping[str, Sent] = field(default_factory=dict)
    """By number on Canvas."""
    pending: Pending | None = None


def digest(comment: str) -> str:
    """The same for the same comment, however Canvas has set its spaces, line ends and `&amp;`."""
    return hashlib.sha256(" ".join(html.unescape(comment).split()).encode()).hexdigest()[:16]


class Keeper:
    """The memory of one assignment on disk. Use as a context manager: nobody else sends to a class meanwhile."""

    def __init__(self, folder: Path, origin: str, course: int, assignment: int) -> None:
        place = f"{urlsplit(origin).netloc.replace(':', '_')}-{course}-{assignment}.json"
        self._folder = folder / FOLDER
        self._file = self._folder / place
        self._lock = -1

    def __enter__(self) -> Keeper:
        try:
            self._folder.mkdir(exist_ok=True)
            self._lock = locked(self._folder / ".lock", wait=False)
        except BlockingIOError:
            raise PushError("another gpulabs export canvas --push is at work on this class; wait for it") from None
        except OSError as error:
            raise PushError(f"{self._folder} cannot be written: {cause(error)}") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def load(self) -> Memory:
        """What is known. Raises `PushError` where the file is damaged."""
        try:
            text = self._file.read_text("utf-8")
        except FileNotFoundError:
            return Memory()
        except (OSError, UnicodeDecodeError) as error:
            raise PushError(f"{self._file} cannot be read: {error}") from None
        try:
            data = json.loads(text, parse_float=Decimal)
            if isinstance(data, dict) and isinstance(pending := data.get("pending"), dict):
                pending["began"] = datetime.fromisoformat(pending["began"])
            return reading.value(Memory, data, self._file)
        except (ValueError, KeyError, TypeError) as error:
            raise PushError(
                f"{self._file} is damaged ({error}); move it away, and all grades on Canvas that differ count as "
                "changed by hand"
            ) from None

    def store(self, memory: Memory) -> None:
        """Replace what is known. Raises `PushError`."""
        try:
            write_file(self._file, json.dumps(asdict(memory), indent=1, default=_plain, ensure_ascii=False) + "\n")
        except OSError as error:
            raise PushError(f"{self._file} cannot be written: {error.strerror}; nothing more is sent") from None


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)
