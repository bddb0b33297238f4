"""`lines/`: what graders said about single lines of a submission's code, a file for each submission.

A comment is kept with the line that it is about and those around it, not with a number. When the student hands in
again, it is at the line that is most like it or, if that is gone, in a list of its own. It gives no points.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gradebook.grading.manual_grading import FOLDER, ManualGradingError
from gradebook.grading.manual_grading.marks import LOCK, ChangedMeanwhileError
from gradebook.text_files import lock, paragraphs, quoted, replace_file
from gradebox.common import reading

LINES = "lines"
MAX_CHARACTERS, MAX_COMMENTS = 4000, 500
_AROUND = 8
"""Lines that are kept above and below: the beginning of a function is among them, so that of two functions with equal
lines the right one is found."""
_NEXT = 2
"""Of these, those that must agree at an empty line."""
_HEAD = "# What graders said about lines of code, as `manual grade` writes it; it belongs to the text of the line.\n"


@dataclass(frozen=True, kw_only=True)
class LineComment:
    """What somebody said about one line."""

    id: str
    file: str
    """Below the labs."""
    line: int
    """Where it was when it was said."""
    code: str
    """The line."""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    text: str
    by: str
    at: datetime


@dataclass(frozen=True)
class _File:
    unit: str
    comment: tuple[LineComment, ...] = ()


@dataclass(frozen=True)
class Placed:
    """A comment, and where it belongs now."""

    comment: LineComment
    file: str
    line: int | None
    """None: the line is gone."""


def load(folder: Path, unit: str) -> tuple[LineComment, ...]:
    """The comments on a submission, as they came. Raises `ManualGradingError` if the file cannot be used."""
    path = _path(folder, unit)
    if not path.exists():
        return ()
    try:
        return reading.into(_File, reading.toml(path)).comment
    except reading.ReadingError as error:
        raise ManualGradingError(str(error)) from None


def add(folder: Path, unit: str, file: str, line: int, lines: Sequence[str], text: str, by: str) -> LineComment:
    """Say something about a line of a file.

    Args:
        folder: of the class.
        unit: the submission's key.
        file: its path below the labs.
        line: from 1.
        lines: of the whole file, as the grader saw it.
        text: what is said.
        by: who says it.

    Raises:
        ManualGradingError: there is no such line, or the text is empty or too long.
    """
    if not 1 <= line <= len(lines):
        raise ManualGradingError(f"{file} has no line {line}")
    made = LineComment(
        id="", file=file, line=line, code=lines[line - 1], before=tuple(lines[max(0, line - 1 - _AROUND) : line - 1]),
        after=tuple(lines[line : line + _AROUND]), text=_checked(text), by=by, at=_now(),
    )  # fmt: skip
    words = "\n".join((unit, file, str(line), made.text, by, made.at.isoformat()))
    made = replace(made, id=f"l{hashlib.sha256(words.encode('utf-8', 'replace')).hexdigest()[:10]}")
    with lock(folder / FOLDER / LOCK):
        known = load(folder, unit)
        if len(known) >= MAX_COMMENTS:
            raise ManualGradingError(f"a submission has at most {MAX_COMMENTS} comments on lines")
        _save(folder, unit, (*known, made))
    return made


def change(folder: Path, unit: str, name: str, text: str, by: str) -> LineComment | None:
    """Say it in other words, or with an empty text no more.

    Raises:
        ChangedMeanwhileError: somebody has removed it, or it is another grader's.
    """
    with lock(folder / FOLDER / LOCK):
        known = {comment.id: comment for comment in load(folder, unit)}
        if name not in known:
            raise ChangedMeanwhileError("somebody removed this comment meanwhile")
        if known[name].by != by:
            raise ChangedMeanwhileError(f"{known[name].by} said this: only they change it")
        if text.strip():
            known[name] = replace(known[name], text=_checked(text), at=_now())
        else:
            del known[name]
        _save(folder, unit, tuple(known.values()))
    return known.get(name)


def placed(comments: Sequence[LineComment], files: Mapping[str, Sequence[str]]) -> tuple[Placed, ...]:
    """Where comments belong in files as they are now: at the line with the same text whose surroundings agree most,
    of two alike the nearer one; in another file only if the line is in one place there and its own file is gone."""
    return tuple(_placed(comment, files) for comment in comments)


def _placed(comment: LineComment, files: Mapping[str, Sequence[str]]) -> Placed:
    if comment.file in files:
        return Placed(comment, comment.file, _line_in(comment, files[comment.file]))
    elsewhere = [(file, line) for file, lines in files.items() if (line := _line_in(comment, lines)) is not None]
    if len(elsewhere) == 1 and comment.code.strip():
        return Placed(comment, *elsewhere[0])
    return Placed(comment, comment.file, None)


def _line_in(comment: LineComment, lines: Sequence[str]) -> int | None:
    code = comment.code.strip()
    best: tuple[int, int, int, int] | None = None
    for number, line in enumerate(lines, start=1):
        if line.strip() != code:
            continue
        above, below = lines[max(0, number - 1 - _AROUND) : number - 1], lines[number : number + _AROUND]
        ups, downs = _agreements(comment.before[::-1], above[::-1]), _agreements(comment.after, below)
        # Unbroken from the line on: further away, code that repeats itself agrees by chance.
        unbroken = sum(sum(itertools.takewhile(bool, side)) for side in (ups, downs))
        if not code and not _agrees_next_to(comment, above, below):
            continue  # an empty line says nothing by itself
        candidate = (unbroken, sum((*ups, *downs)), -abs(number - comment.line), number)
        best = candidate if best is None else max(best, candidate)
    return None if best is None else best[3]


def _agreements(old: Sequence[str], new: Sequence[str]) -> list[bool]:
    return [before.strip() == now.strip() for before, now in zip(old, new, strict=False)]


def _agrees_next_to(comment: LineComment, above: Sequence[str], below: Sequence[str]) -> bool:
    old = [*comment.before[-_NEXT:], *comment.after[:_NEXT]]
    return [line.strip() for line in old] == [line.strip() for line in (*above[-_NEXT:], *below[:_NEXT])]


def _checked(text: str) -> str:
    text = text.strip()
    if not text or len(text) > MAX_CHARACTERS:
        raise ManualGradingError(f"a comment on a line has between 1 and {MAX_CHARACTERS} characters")
    return text


def _save(folder: Path, unit: str, comments: Sequence[LineComment]) -> None:
    text = f"{_HEAD}unit = {quoted(unit)}\n" + "".join(map(_text, comments))
    replace_file(_path(folder, unit), text)


def _text(comment: LineComment) -> str:
    before, after = (", ".join(map(quoted, lines)) for lines in (comment.before, comment.after))
    return (
        f"\n[[comment]]\nid = {quoted(comment.id)}\nfile = {quoted(comment.file)}\nline = {comment.line}\n"
        f"code = {quoted(comment.code)}\nbefore = [{before}]\nafter = [{after}]\ntext = {paragraphs(comment.text)}\n"
        f"by = {quoted(comment.by)}\nat = {comment.at.isoformat()}\n"
    )


def _path(folder: Path, unit: str) -> Path:
    digest = hashlib.sha256(unit.encode("utf-8", "replace")).hexdigest()[:16]
    return folder / FOLDER / LINES / f"{digest}.toml"


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
