"""Whose score is another one than in the exports before: after a regrade, a moved deadline or another team.

Not for why (`feedback.py` says to students what counts and how lateness was computed).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path

from gradebook import text_files
from gradebook.export import FOLDER

_TABLE = "grades.csv"
_FEW = 5
"""So many students are named in any case."""


@dataclass(frozen=True)
class Exported:
    """What the exports of a class say."""

    scores: Mapping[str, str] = field(default_factory=dict)
    """By student, empty for none."""
    most: str = ""
    """What the class can earn."""
    by_hand: str = ""
    """The part of it that people give, released or not."""


def exported(folder: Path) -> Exported:
    """What is in the exports of the class in `folder`; nothing without exports."""
    try:
        text = (folder / FOLDER / _TABLE).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return Exported()
    rows = [row for row in csv.DictReader(io.StringIO(text, newline="")) if row.get("student") and "score" in row]
    most, by_hand = ({row.get(column) or "" for row in rows} - {""} for column in ("max_score", "by_hand_max"))
    scores = {row["student"]: row["score"] or "" for row in rows}
    return Exported(scores, most.pop() if len(most) == 1 else "", by_hand.pop() if len(by_hand) == 1 else "")


def text(before: Exported, after: Exported, review: str) -> str:
    """What is another one now, as a sentence: the maximum, and scores; empty if nothing is.

    `review` is the command that gives points back.
    """
    most = _of_most(before.most, after.most)
    # Of other maxima a lower score is no loss that somebody could give back.
    scores = _of_scores(before.scores, after.scores, "" if most else review)
    said = [most, _of_marks(before.by_hand, after.by_hand), scores]
    return "; ".join(filter(None, said))


def _of_most(before: str, after: str) -> str:
    if not before or not after or before == after:
        return ""
    return f"the class can earn {after} points now, and {before} before"


def _of_marks(before: str, after: str) -> str:
    if not _number(before) or not _number(after) or before == after:
        return ""
    return (
        f"people give {after} points now, and {before} before: marks that were given before keep their comments, which "
        "add and deduct as they did, and points that were typed, so look them through"
    )


def _of_scores(before: Mapping[str, str], after: Mapping[str, str], review: str) -> str:
    """Scores that are other ones now. Who had none before is no news."""
    changed = {
        student: f"{student} {score} → {after[student] or 'none'}"
        for student, score in before.items()
        if score and student in after and after[student] != score
    }
    if not changed:
        return ""
    count = f"{len(changed)} score{'' if len(changed) == 1 else 's'}"
    lower = [
        text
        for student, text in changed.items()
        if after[student] and _number(after[student]) < _number(before[student])
    ]
    said = f"{count} changed since the exports before: {text_files.some(list(changed.values()))}"
    if not lower or not review:
        return said
    which = f"Lower than before: {', '.join(lower)}. " if len(changed) > _FEW else ""
    return f"{said}. {which}If nobody should lose points, {review} --override gives them back"


def _number(score: str) -> Decimal:
    try:
        return Decimal(score)
    except InvalidOperation:  # none, or a cell that somebody has edited
        return Decimal(0)
