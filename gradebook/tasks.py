"""What passes between the run of a class and whoever grades: one task, one grading, and how to open a grader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from gradebox.run.grade import Grade


@dataclass(frozen=True, kw_only=True)
class Task:
    """One submission to be graded, wholly or by some criteria."""

    content: str
    """SHA-256 of the submission, which names it."""
    students: tuple[str, ...]
    """Who handed it in; for people only."""
    folder: Path
    """Where the labs lie."""
    labs: tuple[int, ...]
    criteria: tuple[str, ...]
    """Those to grade."""
    whole: bool
    """Whether these are all criteria of the labs."""
    seed: int
    course: Path
    """The course's folder."""
    device: str
    """As `--device` takes it."""
    seconds: float
    """Wall time it may take."""
    retry: bool = False
    """A second look on a quiet machine, because checks needed review on a busy one."""

    @property
    def label(self) -> str:
        """For people: who handed it in."""
        first, *others = self.students
        return f"{first} (and {len(others)} with the same content)" if others else first


@dataclass(frozen=True, kw_only=True)
class Grading:
    """What became of a task."""

    grade: Grade | None
    """None where there is none."""
    problem: str = ""
    """Why there is none: one line."""
    started: datetime
    ended: datetime
    peak_bytes: int = 0
    """Largest memory of the grader and its sandbox, sampled; 0 where it cannot be known."""


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
