"""A judge that grades nothing: its outcomes follow from the submission's content and the seed, in no time.

A submission may hold `lab1_gpu_basics/behaviour.txt`, which says what happens to the judge meanwhile: `dies` (always),
`dies once` (the first time that this content is graded), `breaks`, `prints`, `hangs`, `hangs once`, `busy` (needs
review as on a busy machine, until graded alone), `suspended` (the same, if its processes were stopped meanwhile),
`kills the run` (once), `fails` (every check). A lab that holds `passes.txt` passes every check.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import grader
from gradebook.results import Grading, Task
from gradebox.run.endings import MACHINE_WAS_BUSY, SANDBOX_FAILED
from gradebox.run.grade import CheckReport, Circumstances, IntegrityNote, Outcome, grade

NOTES = (
    IntegrityNote("file", "opened /etc/passwd", "memory_profiling.py:3", "lab1.memory.every_stage_present"),
    IntegrityNote("source", "benchmark.py names exec()", "benchmark.py:7", "lab1"),
)
_UNTIL_ALONE = {
    "busy": f"no answer in time, and {MACHINE_WAS_BUSY}",
    "suspended": f"{SANDBOX_FAILED}: the supervisor ended without a reply",
}
LOG = "FAKE_JUDGE_LOG"
"""Variable with the file to which every grading adds a line."""


class FakeJudge:
    """Grades by hash."""

    def __init__(self, room: Path) -> None:
        room.mkdir(parents=True, exist_ok=True)

    def grade(self, task: Task) -> Grading:
        if LOG in os.environ:
            with open(os.environ[LOG], "a") as log:
                log.write(f"{task.label}: {', '.join(task.criteria)}\n")
        behaviour = _behaviour(task)
        if behaviour == "dies" or (behaviour == "dies once" and _first(task)):
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "kills the run" and _first(task):
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
        if behaviour == "hangs" or (behaviour == "hangs once" and _first(task)):
            signal.pause()
        if behaviour == "prints":
            for stream in (sys.stdout, sys.stderr):
                print("SECRET \udcff", file=stream)
            warnings.warn("SECRET", stacklevel=1)
        if behaviour == "breaks":
            raise RuntimeError("the disk is full")
        moment = datetime.now(UTC)
        points = grader.course().rubric
        busy = "" if task.retry else _UNTIL_ALONE.get(behaviour, "")
        reports = {check.id: _report(task, check.id, busy=busy) for check in points.checks()}
        if behaviour == "fails":
            reports = {check: CheckReport(Outcome.FAILED, "saw nothing", "look") for check in reports}
        for lab in points.labs:
            if (task.folder / lab.package / "passes.txt").is_file():
                own = [check for check in reports if check.startswith(f"{lab.id}.")]
                reports |= {check: CheckReport(Outcome.PASSED) for check in own}
        circumstances = Circumstances(
            submission=str(task.folder), submission_sha256=task.content, device="virtual T4 (simulated)",
            simulated=True, isolation="namespaces", seed=task.seed, seconds=moment.timestamp() % 60,
            integrity=tuple(note for note in NOTES if note.check.rpartition(".")[0] in ("", *task.criteria)),
        )  # fmt: skip
        result = grade(points, points.select_criteria(task.criteria), reports, circumstances)
        return Grading(grade=result, started=moment, ended=moment, peak_bytes=2**20)

    def close(self) -> None:
        pass


class InThisProcess:
    """An engine with a fake judge and no process."""

    def __init__(self, room: Path) -> None:
        self._judge = FakeJudge(room)

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None]) -> Iterator[tuple[Task, Grading]]:
        for task in tasks:
            started(task)
            yield task, self._judge.grade(task)

    def close(self) -> None:
        pass


def fake_engine(jobs: int, room: Path, device: str) -> InThisProcess:
    return InThisProcess(room)


def _behaviour(task: Task) -> str:
    file = task.folder / "lab1_gpu_basics" / "behaviour.txt"
    return file.read_text().strip() if file.is_file() else ""


def _first(task: Task) -> bool:
    """Whether this content is graded for the first time, as far as a file next to the log knows."""
    marker = Path(f"{os.environ[LOG]}-{task.content[:12]}")
    first = not marker.exists()
    marker.touch()
    return first


def _report(task: Task, check: str, *, busy: str) -> CheckReport:
    if busy and check.startswith("lab1.memory."):
        return CheckReport(Outcome.NEEDS_REVIEW, busy)
    digest = hashlib.sha256(f"{task.content} {task.seed} {check}".encode()).digest()
    return CheckReport(Outcome.PASSED) if digest[0] % 2 else CheckReport(Outcome.FAILED, f"saw {digest[1]}", "look")
