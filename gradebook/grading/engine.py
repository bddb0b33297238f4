"""The interface between the run of a class and its graders: a judge grades one submission, an engine many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from gradebook.results import Grading, Task


class Judge(Protocol):
    """Grades one submission after the other, and keeps between them only what costs time to start."""

    def grade(self, task: Task) -> Grading: ...

    def close(self) -> None: ...


OpenJudge = Callable[[Path], Judge]
"""Starts a judge that may use this folder, which is its own; importable, so that other processes can call it."""


class EngineError(Exception):
    """Nothing can be graded this way; the message is one line that says what to do."""


class Engine(Protocol):
    """Carries out many tasks."""

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None]) -> Iterator[tuple[Task, Grading]]:
        """Every task with its grading, as they come.

        Raises:
            EngineError: no judge can be started.
        """
        ...

    def close(self) -> None: ...


OpenEngine = Callable[[int, Path, str], Engine]
"""What grades, given how many at a time, a folder for files, and the device."""
