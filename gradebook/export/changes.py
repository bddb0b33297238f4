"""Whose score is another one than in the exports before: after a regrade, a moved deadline or another team.

Not for why (`feedback.py` says to students what counts and how lateness was computed).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path

from gradebook import text_files
from gradebook.command_name import command
from gradebook.export import FOLDER

_TABLE = "grades.csv"
_FEW = 5
"""So many students are named in any case."""


def scores(folder: Path) -> dict[str, str]:
    """The scores in the exports of the class in `folder` by student, empty for none; of nobody without exports."""
    try:
        text = (folder / FOLDER / _TABLE).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return {}
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return {row["student"]: row["score"] or "" for row in rows if row.get("student") and "score" in row}


def text(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Scores that are other ones now, as a sentence; empty if there are none. Who had none before is no news."""
    changed = {
        student: f"{student} {score} → {after[student] or 'none'}"
        for student, score in before.items()
        if score and student in after and after[student] != score
    }
    if not changed:
        return ""
    count = f"{len(changed)} score{'' if len(changed) == 1 else 's'}"
    lower = [text for student, text in changed.items() if _number(after[student]) < _number(before[student])]
    said = f"{count} changed since the exports before: {text_files.some(list(changed.values()))}"
    if not lower:
        return said
    which = f"Lower than before: {', '.join(lower)}. " if len(changed) > _FEW else ""
    return f"{said}. {which}If nobody should lose points, {command()} review CLASS --override gives them back"


def _number(score: str) -> Decimal:
    try:
        return Decimal(score)
    except InvalidOperation:  # none, or a cell that somebody has edited
        return Decimal(0)
