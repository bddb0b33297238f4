"""`excused.toml` next to the gradebook: whose work, or which lab of whose, does not count, and why.

[[excused]]
student = "ada"
reason = "ill, with a certificate"

[[excused]]
student = "bob"
lab = 2                           # left out: everything
reason = "joined in week three"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gradebook.results import Excused
from gradebook.text_files import quoted, replace_file
from gradebox.common import reading

FILE = "excused.toml"
_HEADER, _REASON = "[[excused]]", re.compile(r"\s*reason\s*=")
_DECIDED = re.compile(r"\s*(by|at)\s*=")
_HEAD = (
    "# Who is excused: that work takes no part in averages, and no export has it as a 0. Remove an entry to undo it.\n"
)


class ExcusedError(ValueError):
    """The file cannot be used; the message is one line that names the entry and what to do."""


@dataclass(frozen=True)
class _File:
    excused: tuple[Excused, ...] = ()


def load(folder: Path) -> tuple[Excused, ...]:
    """What is excused in the class of `folder`.

    Raises:
        ExcusedError: the file cannot be used.
    """
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        document = reading.toml(path)
        entries = reading.into(_File, document).excused
        visited = set()
        for number, entry in enumerate(entries):
            for name in ("student", "reason"):
                if not getattr(entry, name).strip():
                    raise document.error(("excused", number, name), f"{name} is empty")
            if (entry.student, entry.lab) in visited:
                raise document.error(("excused", number), f"{entry.student} stands twice; keep one")
            visited.add((entry.student, entry.lab))
    except reading.ReadingError as error:
        raise ExcusedError(str(error)) from None
    return entries


def add(folder: Path, entry: Excused) -> None:
    """Write an entry, instead of an earlier one for the same student and lab; everything else in the file stays.

    Raises:
        ExcusedError: the file cannot be used, or the entry has no reason.
    """
    if not entry.reason.strip():
        raise ExcusedError("give a reason: the student's feedback shows it")
    path, before = folder / FILE, load(folder)
    text = path.read_text(encoding="utf-8-sig") if path.exists() else _HEAD
    text = _changed(text if text.endswith("\n") else f"{text}\n", entry)
    after = {(other.student, other.lab): other for other in before} | {(entry.student, entry.lab): entry}
    try:
        written = reading.into(_File, reading.toml(path, text)).excused
    except reading.ReadingError:
        written = ()
    if {(other.student, other.lab): other for other in written} != after or len(written) != len(after):
        raise ExcusedError(f"{path} is written in a way that cannot be changed here; change it by hand")
    replace_file(path, text)


def _changed(text: str, entry: Excused) -> str:
    """The file with one entry set; every other line stays as it is."""
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.strip().startswith(_HEADER)]
    for start, stop in pairwise([*starts, len(lines)]):
        try:
            (old,) = tomllib.loads("".join(lines[start:stop]))["excused"]
        except (tomllib.TOMLDecodeError, KeyError, ValueError):
            continue
        reasons = [at for at in range(start, stop) if _REASON.match(lines[at])]
        if (old.get("student"), old.get("lab")) == (entry.student, entry.lab) and len(reasons) == 1:
            lines[reasons[0]] = _decision(entry)
            kept = [at for at in range(start, stop) if at == reasons[0] or not _DECIDED.match(lines[at])]
            return "".join([*lines[:start], *(lines[at] for at in kept), *lines[stop:]])
    return text + _text(entry)


def wholly(entries: Sequence[Excused], labs: Collection[int]) -> dict[str, str]:
    """Students of whom nothing counts, because no lab does, and why."""
    reasons: dict[str, str] = {}
    for student in dict.fromkeys(entry.student for entry in entries):
        mine = [entry for entry in entries if entry.student == student]
        everything = next((entry for entry in mine if entry.lab is None), None)
        if everything is not None:
            reasons[student] = everything.reason
        elif set(labs) <= {entry.lab for entry in mine}:
            reasons[student] = "; ".join(dict.fromkeys(entry.reason for entry in mine))
    return reasons


def _text(entry: Excused) -> str:
    lab = "" if entry.lab is None else f"lab = {entry.lab}\n"
    return f"\n[[excused]]\nstudent = {quoted(entry.student)}\n{lab}{_decision(entry)}"


def _decision(entry: Excused) -> str:
    """Why, who decided it, and when."""
    by = f"by = {quoted(entry.by)}\n" if entry.by else ""
    at = f"at = {entry.at.isoformat()}\n" if entry.at else ""
    return f"reason = {quoted(entry.reason)}\n{by}{at}"
