"""`python -m tests.gradebook.grading.kill SUBMISSIONS OUT POINT`: grade a small class, and die by SIGKILL at a point.

The gradings are those of the fake judge, in this process.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

import grader
from gradebook.grade_class import grade_class
from gradebook.grading.description import ClassRequest
from gradebook.results import Grading, Task
from tests.gradebook.fakes import FakeJudge, fake_engine

STATEMENTS = {
    "before the first table": "CREATE TABLE meta",
    "before the class is stored": "INSERT OR IGNORE INTO meta",
    "between two students": "INSERT INTO students",
    "before a grading is written": "INSERT INTO gradings",
    "between a grading and what it counts for": "INSERT OR REPLACE INTO outcomes",
}
"""The statement before which to die, by the name of the point."""
WHILE_GRADING = "while grading"
BEFORE_THE_COMMIT = "before the commit of a grading"
POINTS = (*STATEMENTS, WHILE_GRADING, BEFORE_THE_COMMIT)


class Reaper:
    """Ends this process when the point is reached."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._gradings = 0
        self._is_written = False

    def sees_statement(self, statement: str) -> None:
        """Called by SQLite before each statement."""
        statement = statement.strip()
        self._is_written = self._is_written or statement.startswith("INSERT INTO gradings")
        at_commit = self._point == BEFORE_THE_COMMIT and self._is_written and statement == "COMMIT"
        if at_commit or statement.startswith(STATEMENTS.get(self._point, "\0")):
            os.kill(os.getpid(), signal.SIGKILL)

    def sees_grading(self) -> None:
        self._gradings += 1
        if self._point == WHILE_GRADING and self._gradings == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def main(submissions: str, out: str, point: str) -> None:
    reaper = Reaper(point)
    connect, grade = sqlite3.connect, FakeJudge.grade

    def connect_watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*arguments, **options)
        database.set_trace_callback(reaper.sees_statement)
        return database

    def grade_watched(self: FakeJudge, task: Task) -> Grading:
        reaper.sees_grading()
        return grade(self, task)

    sqlite3.connect = connect_watched
    FakeJudge.grade = grade_watched  # type: ignore[method-assign]
    request = ClassRequest(
        course=grader.course(), submissions=Path(submissions), out=Path(out), labs=(1,), device="vgpu", seed=7
    )
    grade_class(request, fake_engine, Console(quiet=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
