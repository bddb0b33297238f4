"""Grades one submission after the other in this process, with one preloaded sandbox."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from gradebook.grading.memory import PeakMemory, used_bytes
from gradebook.results import Grading, Task
from gradebox.course import course as courses
from gradebox.run.grade import Grade
from gradebox.run.grading import run as grade
from gradebox.run.reference_cache import ReferenceCache
from gradebox.run.request import GradingError, GradingRequest
from gradebox.sandbox import Sandbox, devices

_SHARE_OF_TIME = 0.95


class SandboxJudge:
    """The judge of a class. Its sandbox's server starts once; each submission gets a fresh copy in it.

    Runs of the course's own code are asked once: all submissions of a class are graded with the same seed.
    """

    def __init__(self, room: Path, course: Path, side_by_side: int = 1) -> None:
        """Start the sandbox.

        Args:
            room: a folder of its own, which becomes the working directory: no file of anybody is found there.
            course: the course's folder.
            side_by_side: how many judges share the machine's cores.
        """
        empty = room / "empty"
        empty.mkdir(parents=True, exist_ok=True)
        os.chdir(room)
        self._course = courses.load(course)
        self._course.prepare()
        self._sandbox = Sandbox(empty, self._course.environment)
        self._sandbox.side_by_side = side_by_side
        self._sandbox.__enter__()
        self._references = ReferenceCache()
        self._at_rest = 0
        """Bytes of this process and its sandbox between two submissions, looked at after the first."""

    def grade(self, task: Task) -> Grading:
        """Grade one submission; whatever goes wrong is in the result."""
        started = datetime.now(UTC)
        with PeakMemory(least=self._at_rest) as peak:
            graded, problem = self._graded(task)
        self._at_rest = self._at_rest or used_bytes(os.getpid(), closely=True)
        return Grading(grade=graded, problem=problem, started=started, ended=datetime.now(UTC), peak_bytes=peak.bytes)

    def close(self) -> None:
        self._sandbox.close()

    def _graded(self, task: Task) -> tuple[Grade | None, str]:
        rubric = self._course.rubric
        order = GradingRequest(
            course=self._course,
            submission=task.folder,
            rubric=rubric,
            labs=rubric.select(task.labs) if task.whole else rubric.select_criteria(task.criteria),
            device=devices.parse(task.device, self._course.devices),
            seed=task.seed,
            # Its own end, with a report, comes before that of the pool.
            time_limit_seconds=_SHARE_OF_TIME * task.seconds,
        )
        try:
            result = grade(order, sandbox=self._sandbox, references=self._references)
        except GradingError as error:
            return None, str(error)
        if result.submission_sha256 != task.content:
            return None, "the copy of the submission was changed while it was graded; grade the class again"
        return result, ""
