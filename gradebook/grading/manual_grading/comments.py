"""`manual_grading/comments.toml`: what graders say more than once, in one place.

Submissions refer to a comment by its id, so that another text or other points are everybody's at once.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from gradebook.grading.manual_grading import FOLDER, ManualGradingError
from gradebook.text_files import paragraphs, quoted, replace_file
from gradebox.common import reading

FILE = "comments.toml"
_HEAD = "# Comments that graders reuse. Points are added; a deduction is below 0. A change is everybody's who has it.\n"
_ID = re.compile(r"[\w.-]{1,40}", re.ASCII)
MAX_CHARACTERS = 4000
MAX_POINTS = 1000


@dataclass(frozen=True)
class Comment:
    """Something said of a criterion, and what it adds to the points."""

    id: str
    criterion: str
    text: str
    points: Decimal = Decimal(0)
    by: str = ""


@dataclass(frozen=True)
class _File:
    comment: tuple[Comment, ...] = ()


def load(folder: Path) -> dict[str, Comment]:
    """All comments by id, in the file's order.

    Raises:
        ManualGradingError: the file cannot be used.
    """
    path = folder / FOLDER / FILE
    if not path.exists():
        return {}
    try:
        document = reading.toml(path)
        entries = reading.into(_File, document).comment
        comments: dict[str, Comment] = {}
        for number, comment in enumerate(entries):
            place = ("comment", number)
            if not _ID.fullmatch(comment.id) or comment.id in comments:
                raise document.error(
                    (*place, "id"), f"id = {comment.id!r}: each has one of its own, of letters and digits"
                )
            if problem := _problem(comment):
                raise document.error(place, problem)
            comments[comment.id] = comment
    except reading.ReadingError as error:
        raise ManualGradingError(str(error)) from None
    return comments


def save(folder: Path, comments: Sequence[Comment]) -> None:
    """Write the file again."""
    blocks = [
        f"\n[[comment]]\nid = {quoted(comment.id)}\ncriterion = {quoted(comment.criterion)}\n"
        f"text = {paragraphs(comment.text)}\npoints = {comment.points:f}\nby = {quoted(comment.by)}\n"
        for comment in comments
    ]
    replace_file(folder / FOLDER / FILE, _HEAD + "".join(blocks))


def added(known: Mapping[str, Comment], criterion: str, text: str, points: Decimal, by: str) -> Comment:
    """A new comment. Raises `ManualGradingError` where it says nothing or has no sensible points."""
    return checked(Comment(_new_id(known), criterion, text.strip(), points, by))


def changed(comment: Comment, text: str, points: Decimal) -> Comment:
    """The comment with another text or other points. Raises as `added` does."""
    return checked(replace(comment, text=text.strip(), points=points))


def checked(comment: Comment) -> Comment:
    """The comment, if it makes sense. Raises `ManualGradingError`."""
    if problem := _problem(comment):
        raise ManualGradingError(problem)
    return comment


def _problem(comment: Comment) -> str:
    if not comment.text.strip():
        return "a comment needs a text"
    if len(comment.text) > MAX_CHARACTERS:
        return f"a comment has at most {MAX_CHARACTERS} characters"
    if not comment.points.is_finite() or abs(comment.points) > MAX_POINTS:
        return f"points = {comment.points}: at least -{MAX_POINTS} and at most {MAX_POINTS}"
    return ""


def _new_id(known: Mapping[str, Comment]) -> str:
    while (new_id := secrets.token_hex(3)) in known:
        pass
    return new_id
