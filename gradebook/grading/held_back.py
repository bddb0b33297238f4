"""`held_back.toml` next to the gradebook: whose score and feedback leave in no export until somebody releases them.

[[held_back]]
student = "ada"
reason = "talk about the similarity with Bob first"
by = "Grace Hopper"
at = 2026-03-02T08:00:00+00:00

The reason is for graders, and no student reads it. Not for who is excused (`excused.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradebook import toml_entries
from gradebook.command_name import command
from gradebook.results import HeldBack
from gradebook.text_files import quoted, replace_file
from gradebox.common import reading

FILE = "held_back.toml"
_HEAD = """# Whose score and feedback are held back, as `{command} review --hold-back` writes it. An entry removed by
# hand is released with the next exports. Students do not see the reasons.
"""


class HeldBackError(ValueError):
    """The file cannot be used, or a decision cannot be recorded; the message is one line that says what to do."""


@dataclass(frozen=True)
class _File:
    held_back: tuple[HeldBack, ...] = ()


def load(folder: Path) -> tuple[HeldBack, ...]:
    """What is held back in the class of `folder`.

    Raises:
        HeldBackError: the file cannot be used.
    """
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        document = reading.toml(path)
        entries = reading.into(_File, document).held_back
        for number, entry in enumerate(entries):
            for name in ("student", "reason"):
                if not getattr(entry, name).strip():
                    raise document.error(("held_back", number, name), f"{name} is empty")
            if entry.student in [other.student for other in entries[:number]]:
                raise document.error(("held_back", number), f"{entry.student} stands twice; keep one")
    except reading.ReadingError as error:
        raise HeldBackError(str(error)) from None
    return entries


def add(folder: Path, new: Sequence[HeldBack]) -> None:
    """Hold these back, each instead of an earlier entry for the same student.

    Raises:
        HeldBackError: the file cannot be used, or an entry has no reason.
    """
    if not all(entry.reason.strip() for entry in new):
        raise HeldBackError("give a reason: it is for graders, and students do not see it")
    students = {entry.student for entry in new}
    kept = [entry for entry in load(folder) if entry.student not in students]
    text = toml_entries.without(_read(folder), "held_back", lambda entry: entry.get("student") in students)
    _write(folder, "".join([text if text.endswith("\n") else f"{text}\n", *map(_text, new)]), [*kept, *new])


def remove(folder: Path, released: Collection[HeldBack]) -> None:
    """Release these entries. Raises `HeldBackError`."""
    students = {entry.student for entry in released}
    text = toml_entries.without(_read(folder), "held_back", lambda entry: entry.get("student") in students)
    _write(folder, text, [entry for entry in load(folder) if entry.student not in students])


def _read(folder: Path) -> str:
    path = folder / FILE
    return path.read_text(encoding="utf-8-sig") if path.exists() else _HEAD.format(command=command())


def _write(folder: Path, text: str, expected: Sequence[HeldBack]) -> None:
    """Write the file, if it says what it should. Raises HeldBackError if it is of a form that we cannot change."""
    path = folder / FILE
    try:
        written = reading.into(_File, reading.toml(path, text)).held_back
    except reading.ReadingError:
        written = ()
    if list(written) != list(expected):
        raise HeldBackError(f"{path} is written in a way that cannot be changed here; change it by hand")
    replace_file(path, text)


def _text(entry: HeldBack) -> str:
    by = f"by = {quoted(entry.by)}\n" if entry.by else ""
    at = f"at = {entry.at.isoformat()}\n" if entry.at else ""
    return f"\n[[held_back]]\nstudent = {quoted(entry.student)}\nreason = {quoted(entry.reason)}\n{by}{at}"
