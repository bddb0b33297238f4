"""Many gradings at once: hands tasks to workers, replaces those that die, and gives up what kills two of them.

What a worker is, a process here (`processes.py`) or an actor of a plug-in on some node of a cluster, its crew knows.
No submission meets the effects of the one before: the judge runs no code of a
submission, and a worker that ended or was ended is not used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from gradebook.results import Grading, Task

ATTEMPTS = 2


@dataclass(frozen=True)
class Failed:
    """A task came to nothing, and its worker is of no use any more."""

    why: str
    counts: bool = True
    """False where the submission cannot be to blame: a machine was lost."""


class Worker(Protocol):
    """A judge somewhere else, which grades one task at a time."""

    @property
    def idle(self) -> bool:
        """Whether it can take a task now."""

    def begin(self, task: Task) -> None:
        """Take up a task. Does not wait."""

    def answer(self) -> Grading | Failed:
        """What became of the task, for a worker that its crew says has something to say.

        Raises:
            EngineError: no judge can be started there.
        """

    def end(self) -> None:
        """End it and everything that it runs."""


class Crew(Protocol):
    """Where workers come from."""

    def open(self, number: int) -> Worker:
        """A new worker, the crew's n-th."""

    def events(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        """Wait until something has happened, or for a while; those of the workers that can answer now.

        These have graded, have ended, or have taken too long.
        """

    def close(self) -> None:
        """Leave nothing behind."""


class Pool:
    """Grades with the workers of a crew. Use from one thread. See `tasks.Engine`."""

    def __init__(self, jobs: int, crew: Crew) -> None:
        self._jobs = jobs
        self._crew = crew
        self._workers: list[Worker] = []
        self._tasks: dict[int, tuple[Task, int, datetime]] = {}
        """By the worker's id: what it grades, which attempt that is, and since when."""
        self._opened = 0

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None]) -> Iterator[tuple[Task, Grading]]:
        """Grade all tasks, in this order as far as several at once allow."""
        waiting = deque((task, 1) for task in tasks)
        while waiting or self._tasks:
            self._open(min(self._jobs, len(waiting) + len(self._tasks)))
            for worker in self._workers:
                if worker.idle and waiting:
                    task, attempt = waiting.popleft()
                    self._tasks[id(worker)] = task, attempt, datetime.now(UTC)
                    worker.begin(task)
                    started(task)
            for worker in self._crew.events(self._workers):
                answer = worker.answer()
                assignment = self._tasks.pop(id(worker), None)
                if isinstance(answer, Failed):
                    worker.end()
                    self._workers.remove(worker)
                if assignment is None:
                    continue  # it was lost before it had begun
                task, attempt, begun = assignment
                if isinstance(answer, Grading):
                    yield task, answer
                elif attempt < ATTEMPTS or not answer.counts:
                    waiting.append((task, attempt + answer.counts))
                else:
                    problem = f"{answer.why}, and so it did the time before; grade it alone to see more"
                    yield task, Grading(grade=None, problem=problem, started=begun, ended=datetime.now(UTC))

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._crew.close()

    def _open(self, count: int) -> None:
        while len(self._workers) < count:
            self._opened += 1
            self._workers.append(self._crew.open(self._opened))
