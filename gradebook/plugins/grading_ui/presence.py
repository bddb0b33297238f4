"""Who has which submission open, so that two graders do not read the same one: a hint, for a minute, never a lock."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

from gradebook.grading.manual_grading import FOLDER

_FOLDER = ".open"
_SECONDS = 60.0
_IGNORED = "# Not for git: who has what open just now.\n.open/\n.lock\n"


def tell(folder: Path, grader: str, unit: str) -> None:
    """Say that a grader has a submission open; empty: none any more."""
    room = folder / FOLDER / _FOLDER
    room.mkdir(parents=True, exist_ok=True)
    ignored = folder / FOLDER / ".gitignore"
    if not ignored.exists():
        ignored.write_text(_IGNORED, encoding="utf-8")
    name = hashlib.sha256(grader.encode("utf-8", "replace")).hexdigest()[:12]
    path = room / f"{name}.json"
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"who": grader, "unit": unit, "at": time.time()}), encoding="utf-8")
    draft.replace(path)


def others(folder: Path, grader: str) -> dict[str, str]:
    """The other graders who have a submission open, by its id."""
    by_unit = {}
    for path in (folder / FOLDER / _FOLDER).glob("*.json"):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["unit"] and record["who"] != grader and abs(time.time() - record["at"]) < _SECONDS:
                by_unit[str(record["unit"])] = str(record["who"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # being written, or gone
    return by_unit
