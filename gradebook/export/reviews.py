"""What an instructor has to look at, and what was looked at already.

Work for a person: checks that *need review*, notes of the sandbox, and what became of handing in. That is
submissions that were refused, whose student should hear of it; zeros that are withheld, because they may be our fault;
and repositories that could not be fetched. Accepting them is remembered
in `reviews.toml` next to the gradebook, by student, content and criterion: it survives every regrade of the same files,
and is void as soon as the student's files change or something new turns up. Not for changing points: that is an
override (`gradebox/run/overrides.py`), and it settles its criterion too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from gradebook import toml_entries
from gradebook.command_name import command
from gradebook.results import StudentResult
from gradebook.text_files import quoted, write_file
from gradebox.common import reading
from gradebox.run.endings import COURSE_IS_WRONG
from gradebox.run.grade import Grade

FILE = "reviews.toml"
ELSEWHERE = "elsewhere"
"""Stands for the criterion of a note that no check was running for."""
HANDING_IN = "handing-in"
"""Stands for the criterion of a submission that was refused, or is not there."""

_HEAD = """# What was looked at and accepted, as `{command} review` writes it. An entry removed by hand is open again.
# Points are changed in the file of overrides, not here.
"""


class ReviewError(ValueError):
    """A decision cannot be recorded or read; the message is one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing for a person to look at."""

    student: str
    submission_sha256: str
    criterion: str
    kind: Literal["check", "note", "refused", "withheld", "outdated", "partly", "unfetched"]
    key: str
    """The same for the same thing in another grading of the same content."""
    title: str
    detail: str
    where: str = ""
    """File and line of the submission, where that is known."""
    check: str = ""
    of_course: bool = False
    """Whether a mistake of the course is the reason, so that nobody knows the points."""

    @property
    def label(self) -> str:
        """What it is, in a word or two."""
        return {
            "check": "needs review",
            "note": f"note {self.title}",
            "refused": "refused",
            "withheld": "no score yet",
            "outdated": "older work counts",
            "partly": "perhaps a part only",
            "unfetched": "could not be fetched",
        }[self.kind]

    @property
    def can_be_accepted(self) -> bool:
        """Whether somebody may say that it stands. A repository that we failed to fetch has no result."""
        return self.kind != "unfetched"


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """An instructor has seen these things and leaves the points as they are."""

    student: str
    submission_sha256: str
    criterion: str
    items: tuple[str, ...]
    accepted_at: datetime
    accepted_by: str = ""


def items(student: str, grade: Grade) -> Iterator[Item]:
    """All that is to be looked at in one grade, in the rubric's order; what an override settled is left out."""
    settled = {criterion.id for lab in grade.labs for criterion in lab.criteria if criterion.override is not None}
    for check in grade.needs_review:
        yield Item(
            student=student,
            submission_sha256=grade.submission_sha256,
            criterion=check.id.rpartition(".")[0],
            kind="check",
            key=check.id,
            title=check.name,
            detail=check.message,
            check=check.id,
            of_course=check.hint == COURSE_IS_WRONG,
        )
    for note in grade.integrity:
        criterion = note.check.rpartition(".")[0] or ELSEWHERE
        if criterion not in settled:
            yield Item(
                student=student,
                submission_sha256=grade.submission_sha256,
                criterion=criterion,
                kind="note",
                key=f"{note.kind} in {note.check or ELSEWHERE}",
                title=note.kind,
                detail=note.detail,
                where=note.where,
                check=note.check,
            )


def handing_in(result: StudentResult) -> Item | None:
    """What is to be looked at of how this student's work came, or did not; another reason is another thing."""
    kind: Literal["refused", "withheld", "outdated", "partly", "unfetched"]
    if result.outdated:
        kind = "outdated"
    elif result.partly:
        kind = "partly"
    elif result.withheld:
        kind = "withheld"
    elif result.status == "could_not_fetch":
        kind = "unfetched"
    elif result.status == "refused" and result.grade is None:  # else somebody gave points in its place
        kind = "refused"
    else:
        return None
    return Item(
        student=result.student,
        submission_sha256=result.grade.submission_sha256 if result.grade else "",
        criterion=HANDING_IN,
        kind=kind,
        # The same content that counts once more is nothing new, in whatever words the network failed.
        key=kind if kind in ("outdated", "partly") else result.reason,
        title=kind,
        detail=result.reason,
    )


def still_open(candidates: Iterable[Item], accepted: Sequence[Accepted]) -> tuple[Item, ...]:
    """Those that nobody has accepted."""
    known = {
        (entry.student, entry.submission_sha256, entry.criterion, key) for entry in accepted for key in entry.items
    }
    return tuple(
        item for item in candidates if (item.student, item.submission_sha256, item.criterion, item.key) not in known
    )


def load(folder: Path) -> tuple[Accepted, ...]:
    """What was accepted in the class of `folder`; nothing where there is no file.

    Raises:
        ReviewError: the file is no valid TOML, or an entry lacks a field.
    """
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        return reading.into(_File, reading.toml(path)).accepted
    except reading.ReadingError as error:
        raise ReviewError(f"{error}; fix it, or move it away to review again") from None


@dataclass(frozen=True)
class _File:
    accepted: tuple[Accepted, ...] = ()


def accept(folder: Path, reviewed: Sequence[Item], at: datetime, by: str = "") -> Accepted:
    """Record that these things of one student and criterion were looked at; earlier ones of the same content stay.

    Raises:
        ReviewError: there is nothing to accept, or the file cannot be read.
    """
    if not reviewed:
        raise ReviewError("there is nothing to accept")
    first = reviewed[0]
    key = (first.student, first.submission_sha256, first.criterion)
    before = load(folder)
    earlier = [entry for entry in before if (entry.student, entry.submission_sha256, entry.criterion) == key]
    keys = dict.fromkeys([key for entry in earlier for key in entry.items] + [item.key for item in reviewed])
    entry = Accepted(
        student=first.student,
        submission_sha256=first.submission_sha256,
        criterion=first.criterion,
        items=tuple(keys),
        accepted_at=at.replace(microsecond=0),
        accepted_by=by,
    )
    path, kept = folder / FILE, [other for other in before if other not in earlier]
    text = path.read_text(encoding="utf-8-sig") if path.exists() else _HEAD.format(command=command())
    names = ("student", "submission_sha256", "criterion")
    text = toml_entries.without(text, "accepted", lambda other: tuple(other.get(name) for name in names) == key)
    text = "".join([text if text.endswith("\n") else f"{text}\n", _text(entry)])
    try:
        written = reading.into(_File, reading.toml(path, text)).accepted
    except reading.ReadingError:
        written = ()
    if list(written) != [*kept, entry]:
        raise ReviewError(f"{path} is written in a way that cannot be changed here; change it by hand")
    write_file(path, text)
    return entry


def _text(entry: Accepted) -> str:
    return (
        "\n[[accepted]]\n"
        f"student = {quoted(entry.student)}\n"
        f"submission_sha256 = {quoted(entry.submission_sha256)}\n"
        f"criterion = {quoted(entry.criterion)}\n"
        f"items = [{', '.join(map(quoted, entry.items))}]\n"
        f"accepted_at = {entry.accepted_at.isoformat()}\n"
    ) + (f"accepted_by = {quoted(entry.accepted_by)}\n" if entry.accepted_by else "")
