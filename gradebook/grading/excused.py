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

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradebook.results import Excused
from gradebook.text_files import quoted, replace_file
from gradebox.common import reading

FILE = "excused.toml"
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
            if not entry.reason.strip():
                raise document.error(("excused", number, "reason"), "reason is empty")
            if (entry.student, entry.lab) in visited:
                raise document.error(("excused", number), f"{entry.student} stands twice; keep one")
            visited.add((entry.student, entry.lab))
    except reading.ReadingError as error:
        raise ExcusedError(str(error)) from None
    return entries


def add(folder: Path, entry: Excused) -> None:
    """Write an entry, instead of an earlier one for the same student and lab; comments in the file are not kept.

    Raises:
        ExcusedError: the file cannot be used, or the entry has no reason.
    """
    if not entry.reason.strip():
        raise ExcusedError("give a reason: the student's feedback shows it")
    kept = [other for other in load(folder) if (other.student, other.lab) != (entry.student, entry.lab)]
    replace_file(folder / FILE, _HEAD + "".join(map(_text, [*kept, entry])))


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
    return f"\n[[excused]]\nstudent = {quoted(entry.student)}\n{lab}reason = {quoted(entry.reason)}\n"
