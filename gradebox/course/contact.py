"""Where students get help: the table `[contact]` of `course.toml`, checked, and as a line of text.

    [contact]
    office_hours = "Tuesdays, 14:00 to 16:00, room 2.31"
    forum = "https://forum.example.org/c/gpu-labs"
    chat = "#gpu-labs in the department's chat"
    email = "gpu-labs@example.org"

Every key may be left out. A course without any shows no contact anywhere. Not for the pages themselves: reports,
hand-outs and feedback decide where to show it.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from gradebox.common import reading
from gradebox.common.reading import Document
from gradebox.common.texts import is_printable

TABLE = "contact"
MAX_CHARACTERS = 200
"""A line of a page, and more than any address needs."""
_LABELS = {"office_hours": "office hours", "forum": "forum", "chat": "chat", "email": "e-mail"}
_EMAIL = re.compile(r"[^@\s<>]+@[^@\s<>]+")


@dataclass(frozen=True)
class Contact:
    """Where students of a course get help; an empty text stands for nothing."""

    office_hours: str = ""
    """When, and where."""
    forum: str = ""
    """A web address."""
    chat: str = ""
    """A channel by its name, or a web address."""
    email: str = ""

    def __bool__(self) -> bool:
        return any(True for _ in self.entries())

    def entries(self) -> Iterator[tuple[str, str]]:
        """What is set, each with its label: `("office hours", "Tuesdays, 14:00 to 16:00")`."""
        for field in fields(self):
            if text := getattr(self, field.name):
                yield _LABELS[field.name], text

    def stored(self) -> dict[str, str]:
        """What is set, by key, for a file that another version may read."""
        return {name: text for name, text in vars(self).items() if text}

    def line(self) -> str:
        """All of it in one line; empty where nothing is set."""
        return "; ".join(f"{label}: {text}" for label, text in self.entries())


NOBODY = Contact()


def of(document: Document) -> Contact:
    """The contact that a `course.toml` names; `NOBODY` without the table.

    Raises:
        ReadingError: a value cannot be used; the message names file and line.
    """
    if TABLE not in document.data:
        return NOBODY
    contact = reading.into(Contact, document, TABLE)
    for name, text in vars(contact).items():
        if text and (problem := _problem(name, text)):
            raise document.error((TABLE, name), f"{name} = {text!r}: {problem}")
    return contact


def load(path: Path) -> Contact:
    """The contact that the `course.toml` at `path` names. Raises as `of` does."""
    return of(reading.toml(path))


def _problem(name: str, text: str) -> str:
    if not text.strip() or text != text.strip() or not is_printable(text):
        return "expected one line without spaces at its ends"
    if len(text) > MAX_CHARACTERS:
        return f"expected at most {MAX_CHARACTERS} characters"
    if name == "forum" and not is_address(text):
        return "expected a web address, like https://forum.example.org/c/gpu-labs"
    if name == "email" and not _EMAIL.fullmatch(text):
        return "expected one e-mail address, like gpu-labs@example.org"
    return ""


def is_address(text: str) -> bool:
    """Whether `text` is a web address that a page can link to."""
    try:
        parts = urllib.parse.urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"[\s<>\"]", text)
    except ValueError:
        return False
