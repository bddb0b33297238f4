"""The local engine: a few long-lived processes, each with a judge of its own. One that dies is replaced.

What a submission does to its judge's process, the next one never meets: the judge runs no code of a submission, and a
process that ended or was ended is not used again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from pathlib import Path

from gradebook.run.tasks import EngineError, Grading, OpenJudge, Task
from gradebox.sandbox import linux

ATTEMPTS = 2
_STOP_SECONDS = 30.0


class LocalPool:
    """Grades with processes on this machine. Use from one thread."""

    def __init__(self, jobs: int, room: Path, open_judge: OpenJudge) -> None:
        """`room` is a folder for the processes' files."""
        self._jobs = jobs
        self._room = room
        self._open_judge = open_judge
        self._workers: list[_Worker] = []
        self._opened = 0

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None]) -> Iterator[tuple[Task, Grading]]:
        """Grade all tasks, in this order as far as several at once allow. See `tasks.Engine`."""
        waiting = deque((task, 1) for task in tasks)
        while waiting or any(worker.task for worker in self._workers):
            self._open(min(self._jobs, len(waiting) + sum(worker.task is not None for worker in self._workers)))
            for worker in self._workers:
                if worker.task is None and waiting:
                    task, attempt = waiting.popleft()
                    worker.begin(task, attempt)
                    started(task)
            for worker in self._next_events():
                task, attempt, answer = worker.answer()
                if isinstance(answer, Grading):
                    yield task, answer
                    continue
                self._replace(worker)
                if isinstance(answer, EngineError):
                    raise answer
                if attempt < ATTEMPTS:
                    waiting.append((task, attempt + 1))
                else:
                    yield task, worker.gave_up(answer)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def _open(self, count: int) -> None:
        while len(self._workers) < count:
            self._opened += 1
            self._workers.append(_Worker(self._room / f"judge-{self._opened}", self._open_judge))

    def _replace(self, worker: _Worker) -> None:
        worker.end()
        self._workers.remove(worker)

    def _next_events(self) -> list[_Worker]:
        """The processes that have something to say, have ended, or have taken too long."""
        busy = [worker for worker in self._workers if worker.task is not None]
        patience = min(worker.deadline for worker in busy) - time.monotonic()
        ready = wait([worker.connection for worker in busy], timeout=max(0.0, patience))
        now = time.monotonic()
        return [worker for worker in busy if worker.connection in ready or now >= worker.deadline]


class _Worker:
    """One process and what it does."""

    def __init__(self, room: Path, open_judge: OpenJudge) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self.task: Task | None = None
        self.attempt = 0
        self.deadline = 0.0
        self._begun = datetime.now(UTC)
        self._room = room
        self._process = context.Process(target=_serve, args=(there, room, open_judge, os.getpid()), name=room.name)
        self._process.start()
        there.close()

    def begin(self, task: Task, attempt: int) -> None:
        self.task, self.attempt = task, attempt
        self._begun = datetime.now(UTC)
        self.deadline = time.monotonic() + task.seconds
        with contextlib.suppress(OSError):  # its end is noticed when it should answer
            self.connection.send(task)

    def answer(self) -> tuple[Task, int, Grading | str | EngineError]:
        """The task, which attempt it was, and its grading; or why there is none, and then the process is of no use."""
        assert self.task is not None
        task, self.task = self.task, None
        return task, self.attempt, self._receive(task)

    def _receive(self, task: Task) -> Grading | str | EngineError:
        if not self.connection.poll():
            return f"it took longer than {task.seconds / 60:g} minutes"
        try:
            answer: Grading | str | EngineError = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(_STOP_SECONDS)
            code = self._process.exitcode
            how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            return f"its grading process ended with {how}"
        return answer

    def gave_up(self, why: str) -> Grading:
        problem = f"{why}, and so it did the time before; grade it alone to see more"
        return Grading(document=None, problem=problem, started=self._begun, ended=datetime.now(UTC))

    def end(self) -> None:
        """End the process; its sandbox's guard then ends whatever the sandbox runs."""
        self.connection.close()
        self._process.kill()
        self._process.join(_STOP_SECONDS)
        shutil.rmtree(self._room, ignore_errors=True)


def _serve(connection: Connection, room: Path, open_judge: OpenJudge, parent: int) -> None:
    """The life of a grading process."""
    # The terminal interrupts all processes of a run; the one that started us then ends us. A handler, unlike SIG_IGN,
    # is not handed down to the sandbox.
    signal.signal(signal.SIGINT, lambda *_: None)
    if linux.AVAILABLE:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it had ended before
            return
    try:
        room.mkdir(parents=True, exist_ok=True)
        judge = open_judge(room)
    except Exception as error:
        connection.send(EngineError(f"no grading process can be started here: {type(error).__name__}: {error}"))
        return
    with contextlib.suppress(EOFError, OSError):  # whoever asked is gone
        while True:
            task = connection.recv()
            try:
                answer: Grading | str = judge.grade(task)
            except Exception as error:
                answer = f"its grading broke: {type(error).__name__}: {error}"
            connection.send(answer)
    judge.close()
