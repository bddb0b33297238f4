"""`manual_grading/requests.toml`: what students ask to be looked at again, and what they were answered."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from gradebook import column_titles, csv_tables
from gradebook.command_name import command
from gradebook.grading.manual_grading import FOLDER, ManualGradingError
from gradebook.grading.manual_grading.marks import LOCK
from gradebook.results import RegradeRequest
from gradebook.roster import KEYS
from gradebook.text_files import lock, paragraphs, quoted, replace_file
from gradebox.common import reading

FILE = "requests.toml"
MAX_CHARACTERS = 10_000
_LIKE_ABOUT = ("criterion", "criteria", "question", "problem", "part", "check", "task", "lab", "regarding", "topic")
"""Titles of columns, small, that people would take for what `about` is."""
_SHOWN = 40
"""So many signs of a request are shown."""
_LIKE_MARKS = ("points", "new points", "mark", "marks", "score", "grade")
"""The same for what a person gives."""
_HEAD = (
    "# What students ask to be looked at again. An entry with an answer is settled, and is in the student's feedback.\n"
)


@dataclass(frozen=True)
class NewRequest:
    """A request as a file brings it."""

    student: str
    text: str
    about: str = ""
    """A criterion, of checks or by hand; empty for the whole."""

    @property
    def called(self) -> str:
        """By what a person finds it in the file."""
        return f"the request {' '.join(self.text.split())[:_SHOWN]!r}"


@dataclass(frozen=True)
class _Row(NewRequest):
    """A request that is a row of a table."""

    line: int = field(default=0, compare=False)

    @property
    def called(self) -> str:
        return f"line {self.line}, {super().called}"


@dataclass(frozen=True)
class _File:
    request: tuple[RegradeRequest, ...] = ()


@dataclass(frozen=True)
class _Brought:
    request: tuple[NewRequest, ...] = ()


def load(folder: Path) -> tuple[RegradeRequest, ...]:
    """All requests, as they came.

    Raises:
        ManualGradingError: the file cannot be used.
    """
    path = folder / FOLDER / FILE
    if not path.exists():
        return ()
    try:
        document = reading.toml(path)
        entries = reading.into(_File, document).request
        visited: set[str] = set()
        for number, entry in enumerate(entries):
            if entry.id in visited:
                raise document.error(("request", number, "id"), f"id = {entry.id!r} stands twice; keep one")
            visited.add(entry.id)
    except reading.ReadingError as error:
        raise ManualGradingError(str(error)) from None
    return entries


def read(path: Path) -> tuple[NewRequest, ...]:
    """Requests from a file: TOML with `[[request]]`, or a CSV with the columns student, about and text.

    Raises:
        ManualGradingError: it is neither.
    """
    if path.suffix.lower() == ".toml":
        try:
            brought = reading.into(_Brought, reading.toml(path)).request
            return tuple(replace(request, about=about_of(request.about)) for request in brought)
        except reading.ReadingError as error:
            raise ManualGradingError(str(error)) from None
    try:
        table = csv_tables.read(path, texts=("text",))
    except csv_tables.TableError as error:
        raise ManualGradingError(str(error)) from None
    names = {title.casefold(): title for title in table.titles}
    meant = column_titles.as_known(table.titles, KEYS)
    who = [title for key in KEYS for title, known in meant.items() if known == key]
    if not who or "text" not in names:
        lacking = "text" if who else "student"
        raise ManualGradingError(
            f"{path} has no column {lacking!r} in its first line, which has the titles; it needs text, student (or "
            "another column that identifies students, such as Email), and perhaps about"
        )
    if "about" not in names and (unread := next((names[title] for title in _LIKE_ABOUT if title in names), None)):
        raise ManualGradingError(
            f"{path} has a column {unread!r}, which nothing reads: call it about if it has criteria, such as "
            "lab1.memory, or remove it"
        )
    if marks := next((names[title] for title in _LIKE_MARKS if title in names), None):
        raise ManualGradingError(
            f"{path} has a column {marks!r}, and a request gives no points: remove it. Marks are given on the page of "
            f"{command()} manual grade, and other points with {command()} review CLASS --override"
        )
    if said := column_titles.misspelt(table.titles, ("about",)):
        raise ManualGradingError(f"{path} {said}")
    incoming, incomplete = [], []
    for row in table.rows:
        student, text = next((cell for title in who if (cell := row.cell(title))), ""), row.cell(names["text"])
        if student and text:
            incoming.append(_Row(student, text, about_of(row.cell(names.get("about", ""))), row.line))
        else:
            lacking = f"the text of {student}'s request" if student else "who asks"
            incomplete.append(f"line {row.line} does not say {lacking}")
    if incomplete:
        raise ManualGradingError(
            f"{path}: {'; '.join(incomplete)}. Complete these rows, or remove them. Nothing was recorded"
        )
    return tuple(incoming)


def about_of(typed: str) -> str:
    return "" if typed.casefold() == "all" else typed


def add(
    folder: Path,
    new_requests: Sequence[NewRequest],
    students: Collection[str],
    criteria: Collection[str],
    problems: Sequence[str] = (),
) -> list[str]:
    """Record requests and return the ids of those that are new; the same one twice is one. Nothing is written on error.

    `problems` are those of other requests of the same file.

    Raises:
        ManualGradingError: one names no student or no criterion of this class, or says nothing.
    """
    own = [problem for request in new_requests if (problem := _problem(request, students, criteria))]
    if problems := [*problems, *dict.fromkeys(own)]:
        raise ManualGradingError(f"{'; '.join(problems)}. Nothing was recorded")
    with lock(folder / FOLDER / LOCK):
        known = {request.id: request for request in load(folder)}
        new = []
        for request in new_requests:
            name = _id(request)
            if name not in known:
                known[name] = RegradeRequest(
                    id=name, student=request.student, about=request.about, text=request.text.strip(), asked_at=_now()
                )
                new.append(name)
        _save(folder, list(known.values()))
    return new


def _problem(request: NewRequest, students: Collection[str], criteria: Collection[str]) -> str:
    """Why a request cannot be recorded; empty if it can."""
    about = f"{request.called} of {request.student!r}"
    if request.student not in students:
        return f"{about}: there is no such student in this class; students are named as in grades.csv"
    if request.about and request.about not in criteria:
        return f"{about} is about {request.about!r}; there are {', '.join(criteria)}, and all"
    if not request.text.strip() or len(request.text) > MAX_CHARACTERS:
        return f"{about} needs a text of at most {MAX_CHARACTERS} characters"
    return ""


def settled(folder: Path, incoming: Sequence[NewRequest], new: Collection[str]) -> list[str]:
    """The ids of those that were there already, and have an answer."""
    answered = {request.id for request in load(folder) if request.answered_at is not None}
    ids = dict.fromkeys(_id(request) for request in incoming)
    return [name for name in ids if name in answered and name not in new]


def answer(folder: Path, name: str, text: str, by: str, mates: Collection[str] = ()) -> tuple[RegradeRequest, ...]:
    """Answer a request; another answer takes the place of the first, an empty one opens it again.

    Args:
        folder: of the class.
        name: the request's id.
        text: the answer.
        by: who answers.
        mates: students of the same team, whose request it is as well if they asked the same.

    Returns:
        The request, and those of the team that are the same.

    Raises:
        ManualGradingError: there is no such request.
    """
    if len(text) > MAX_CHARACTERS:
        raise ManualGradingError(f"an answer has at most {MAX_CHARACTERS} characters")
    with lock(folder / FOLDER / LOCK):
        known = {request.id: request for request in load(folder)}
        if name not in known:
            raise ManualGradingError(f"there is no request {name!r}; {command()} manual requests lists them")
        said, asked = text.strip(), known[name]
        same = [other for other in known.values() if other.student in mates and _words(other) == _words(asked)]
        settled = [other for other in same if other.answer == asked.answer]
        moment = _now() if said else None
        made = tuple(
            replace(request, answer=said, answered_by=by if said else "", answered_at=moment)
            for request in (asked, *settled)
        )
        known |= {request.id: request for request in made}
        _save(folder, list(known.values()))
    return made


def _save(folder: Path, entries: Sequence[RegradeRequest]) -> None:
    blocks = []
    for entry in entries:
        block = (
            f"\n[[request]]\nid = {quoted(entry.id)}\nstudent = {quoted(entry.student)}\n"
            f"about = {quoted(entry.about)}\ntext = {paragraphs(entry.text)}\nasked_at = {entry.asked_at.isoformat()}\n"
        )
        if entry.answered_at is not None:
            block += (
                f"answer = {paragraphs(entry.answer)}\nanswered_by = {quoted(entry.answered_by)}\n"
                f"answered_at = {entry.answered_at.isoformat()}\n"
            )
        blocks.append(block)
    replace_file(folder / FOLDER / FILE, _HEAD + "".join(blocks))


def once(recorded: Sequence[RegradeRequest], members: Collection[str]) -> list[RegradeRequest]:
    """The requests of the members of one team, each once if several ask the same and have the same answer."""
    theirs = [request for request in recorded if request.student in members]
    first = {(*_words(request), request.answer): request for request in reversed(theirs)}
    return [request for request in theirs if request in first.values()]


def _words(request: NewRequest | RegradeRequest) -> tuple[str, str]:
    return request.about, " ".join(request.text.split())


def _id(request: NewRequest) -> str:
    words = "\n".join((request.student, *_words(request)))
    return f"r{hashlib.sha256(words.encode('utf-8', 'replace')).hexdigest()[:7]}"


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
