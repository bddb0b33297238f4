"""Workers of this machine: a few long-lived processes, each with a judge of its own."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from gradebook.grading.engine import EngineError, OpenJudge
from gradebook.grading.pool import Failed, Pool, Worker
from gradebook.results import Grading, Task
from gradebox.sandbox import linux

_STOP_SECONDS = 30.0


def local_pool(jobs: int, room: Path, open_judge: OpenJudge) -> Pool:
    """Grades with processes on this machine; `room` is a folder for their files."""
    return Pool(jobs, _Processes(room, open_judge))


class _Processes:
    """The crew of this machine."""

    def __init__(self, room: Path, open_judge: OpenJudge) -> None:
        self._room = room
        self._open_judge = open_judge

    def open(self, number: int) -> Worker:
        return _Process(self._room / f"judge-{number}", self._open_judge)

    def events(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        busy = [worker for worker in workers if isinstance(worker, _Process) and not worker.idle]
        patience = min(worker.deadline for worker in busy) - time.monotonic()
        ready = wait([worker.connection for worker in busy], timeout=max(0.0, patience))
        now = time.monotonic()
        return [worker for worker in busy if worker.connection in ready or now >= worker.deadline]

    def close(self) -> None: ...


class _Process:
    """One process and what it does."""

    def __init__(self, room: Path, open_judge: OpenJudge) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self.deadline = math.inf
        self._task: Task | None = None
        self._room = room
        self._process = context.Process(target=_serve, args=(there, room, open_judge, os.getpid()), name=room.name)
        self._process.start()
        there.close()

    @property
    def idle(self) -> bool:
        return self._task is None

    def begin(self, task: Task) -> None:
        self._task = task
        self.deadline = time.monotonic() + task.seconds
        with contextlib.suppress(OSError):  # its end is noticed when it should answer
            self.connection.send(task)

    def answer(self) -> Grading | Failed:
        assert self._task is not None
        task, self._task = self._task, None
        if not self.connection.poll():
            return Failed(f"it took longer than {task.seconds / 60:g} minutes")
        try:
            answer: Grading | str | EngineError = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(_STOP_SECONDS)
            code = self._process.exitcode
            how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            return Failed(f"its grading process ended with {how}")
        if isinstance(answer, EngineError):
            raise answer
        return Failed(answer) if isinstance(answer, str) else answer

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
    # What a check prints, again for each submission, is for its author, who grades one at a time.
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
    try:
        room.mkdir(parents=True, exist_ok=True)
        judge = open_judge(room)
    except Exception as error:
        connection.send(EngineError(f"no grading process can be started here: {type(error).__name__}: {error}"))
        return
    with contextlib.suppress(EOFError, OSError):  # the caller is gone
        while True:
            task = connection.recv()
            try:
                answer: Grading | str = judge.grade(task)
            except Exception as error:
                answer = f"its grading broke: {type(error).__name__}: {error}"
            connection.send(answer)
    judge.close()
