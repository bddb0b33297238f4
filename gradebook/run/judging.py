"""Grades one submission after the other in this process, as `pytest --grade` does, with one preloaded sandbox."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gradebook.run.memory import PeakMemory
from gradebook.run.tasks import Grading, Task
from gradebox.configuration import own_configuration
from gradebox.sandbox import Sandbox

_COULD_NOT = "could not grade: "
_SHARE_OF_TIME = 0.95


class SandboxJudge:
    """The judge of a class. Its sandbox's server starts once; each submission gets a fresh copy in it."""

    def __init__(self, room: Path) -> None:
        """Start the sandbox.

        Args:
            room: a folder of its own, which becomes the working directory: pytest must find no file of anybody there.
        """
        self._report = room / "report"
        empty = room / "empty"
        empty.mkdir(parents=True, exist_ok=True)
        os.chdir(room)
        self._sandbox = Sandbox(empty)
        self._sandbox.__enter__()

    def pytest_grade_sandbox(self, folder: Path) -> Sandbox:
        """The hook: pytest grades in our sandbox."""
        return self._sandbox

    def grade(self, task: Task) -> Grading:
        """Grade one submission; whatever goes wrong is in the result."""
        started = datetime.now(UTC)
        with PeakMemory() as peak:
            document, problem = self._document(task)
        return Grading(
            document=document, problem=problem, started=started, ended=datetime.now(UTC), peak_bytes=peak.bytes
        )

    def close(self) -> None:
        self._sandbox.close()

    def _document(self, task: Task) -> tuple[dict[str, Any] | None, str]:
        shutil.rmtree(self._report, ignore_errors=True)
        arguments = [*own_configuration(), "-p", "no:cacheprovider", "--grade", f"--submission={task.folder}"]
        arguments += [f"--device={task.device}", f"--grade-seed={task.seed}", f"--grade-report={self._report}"]
        # Its own end, with a report, comes before that of the pool.
        arguments += [f"--time-limit={_SHARE_OF_TIME * task.seconds}"]
        arguments += [f"--lab={','.join(map(str, task.labs))}"] if task.whole else []
        arguments += [] if task.whole else [f"--criterion={','.join(task.criteria)}"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            pytest.main(arguments, [self])
        try:
            document: dict[str, Any] = json.loads((self._report / "grade.json").read_text(encoding="utf-8"))
        except OSError:
            said = [line for line in printed.getvalue().splitlines() if line.strip()]
            if told := next((line for line in said if line.startswith(_COULD_NOT)), ""):
                return None, told.removeprefix(_COULD_NOT)
            return None, f"the grading ended without a result: {said[-1] if said else 'it printed nothing'}"
        if document["submission_sha256"] != task.content:
            return None, "the copy of the submission was changed while it was graded; run gpulabs class again"
        return document, ""
