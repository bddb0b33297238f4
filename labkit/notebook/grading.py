"""Grading in a notebook: the whole lab in its last cell, and `%grade` wherever one wants to know, in a second.

Either in a process of its own. That of `%grade` stays, and asks only what can have changed since the last time.
"""

from __future__ import annotations

import contextlib
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
_PATIENCE_SECONDS = 20.0


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
        lines = (answer.stdout + answer.stderr).strip().splitlines()[-12:]
        notes.wrong("Nothing could be graded.", "\n".join(lines))
        return
    _show(lab, grade)


class Asking:
    """`%grade lab1.memory`: some criteria, or without any the notebook's lab."""

    def __init__(self, root: Path, labs: Path) -> None:
        self._root = root
        self._labs = labs
        self._process: subprocess.Popen[str] | None = None
        self._option = ""

    def grade(self, lab: int | str, criteria: str) -> None:
        """Show what the checks say of the files as they are saved now."""
        if os.environ.get(LEFT_OUT) == "0":
            notes.card("Grading is left out here.")
            return
        try:
            answer = self._ask(str(lab), criteria.replace(" ", ""))
        except (OSError, ValueError):  # it has ended, or said something else
            text = self._end()
            notes.wrong("Nothing could be graded.", text)
            return
        except KeyboardInterrupt:  # its answer would be taken for the next one's
            self._kill()
            raise
        if "error" in answer:
            notes.wrong("Nothing could be graded.", answer["error"])
            return
        _show(lab, answer["grade"])

    def close(self) -> None:
        """End the process."""
        self._end()

    def _ask(self, lab: str, criteria: str) -> dict[str, Any]:
        """Raises OSError, ValueError: there is no answer."""
        if self._process is None or self._process.poll() is not None or self._option != lab:
            self._end()
            self._start(lab)
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{criteria}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def _start(self, lab: str) -> None:
        device = os.environ.get("GPULABS_DEVICE", "auto")
        command = [sys.executable, "-c", "from grader.cli import app; app(prog_name='gpulabs')", "watch", "--asked"]
        self._process = subprocess.Popen(
            [*command, str(self._labs.resolve()), f"--lab={lab}", f"--device={device}"],
            cwd=self._root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        self._option = lab

    def _end(self) -> str:
        """End the process; what it still had to say."""
        process, self._process = self._process, None
        if process is None:
            return ""
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            return "\n".join(process.communicate(timeout=_PATIENCE_SECONDS)[0].strip().splitlines()[-12:])
        self._process = process
        self._kill()
        return ""

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()  # it ends its judge, and what that has started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_SECONDS)
            process.kill()
            process.wait()


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
