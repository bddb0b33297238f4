"""The last cell of a lab's notebook: grade the lab in a process of its own, and show the result as a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.notebook import notes

LEFT_OUT = "GPULABS_NOTEBOOK_GRADE"
_MARKS = {"passed": "✓", "failed": "✗", "blocked": "·", "needs_review": "?"}
_MAX_TOLD = 3


def grade_and_show(lab: int | str | None, labs: Path, *, root: Path, folder: Path) -> None:
    """Run `pytest --grade --lab LAB` on the folder `labs` that the notebook uses.

    Args:
        lab: its number, or the name of an exercise.
        labs: what is graded.
        root: the checkout.
        folder: the notebook's own, for the report.

    With GPULABS_NOTEBOOK_GRADE=0 in the environment nothing is graded, and a note says so.
    """
    if os.environ.get(LEFT_OUT) == "0":
        notes.card("Grading is left out here. `make grade LAB=" + str(lab) + "` does it.")
        return
    report = folder / "grade"
    device = os.environ.get("GPULABS_DEVICE", "auto")
    command = [sys.executable, "-m", "pytest", "--grade", f"--lab={lab}", f"--device={device}"]
    command += [f"--submission={labs.resolve()}", f"--grade-report={report}"]
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True)
    try:
        grade = json.loads((report / "grade.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = (answer.stdout + answer.stderr).strip().splitlines()[-12:]
        notes.wrong("Nothing could be graded.", "\n".join(told))
        return
    _show(lab, grade)


def _show(lab: int | str | None, grade: Mapping[str, Any]) -> None:
    result = next(entry for entry in grade["labs"] if entry["id"] in (lab, f"lab{lab}"))
    rows = []
    unmet = []
    for criterion in result["criteria"]:
        marks = " ".join(_MARKS.get(check["outcome"], "?") for check in criterion["checks"])
        rows.append((criterion["title"], f"{criterion['points']} / {criterion['max_points']}", marks))
        unmet += [check for check in criterion["checks"] if check["outcome"] in ("failed", "needs_review")]
    title = f"{result['title']}: {result['points']} of {result['max_points']} points"
    notes.table(("criterion", "points", "checks"), rows, title=title, kind="grade")
    for check in unmet[:_MAX_TOLD]:
        hint = f"\n→ {check['hint']}" if check["hint"] else ""
        notes.card(f"{_MARKS.get(check['outcome'], '?')} {check['id']}\n{check['message']}{hint}")
    if unmet:
        more = f" {len(unmet) - _MAX_TOLD} more checks want something: " if len(unmet) > _MAX_TOLD else " "
        notes.card(f"What now:{more}`make grade LAB={lab}` writes them all to `grade-report/grade.html`, and "
                   "`make next` says which task to do next.")  # fmt: skip
    else:
        notes.card("Every check of this lab has passed.", kind="grade")
