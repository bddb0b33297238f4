"""What a person asks for in one grading, as typed, and the order that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradebox import course as courses
from gradebox import devices, resources
from gradebox import overrides as given
from gradebox.course import Course
from gradebox.fresh import new_seed
from gradebox.order import GradingError, Order
from gradebox.rubric import Rubric

TIME_LIMIT_SECONDS = 600.0
"""For a whole grading: ten times what the reference takes. On a device that is measured only who asks has one."""


_MOST_JOBS = 4
"""Sandboxes that nobody asked for: beyond these a grade waits for its longest criterion."""
_BYTES_PER_JOB = 3 * 2**30
"""A sandbox with what the checks of a lab start in it."""


_CHECKS_PER_JOB = 15
"""Fewer are asked before a further sandbox has imported what it needs."""


def _jobs(checks: int) -> int:
    """As many sandboxes as there are cores, as far as memory and the checks to ask go."""
    memory = resources.memory_bytes()
    room = _MOST_JOBS if memory is None else max(1, memory // _BYTES_PER_JOB)
    return min(resources.cores(), _MOST_JOBS, room, 1 + checks // _CHECKS_PER_JOB)


@dataclass(frozen=True)
class Options:
    """Options of `gpulabs grade` and `pytest --grade`; paths are relative to `origin`."""

    course: str
    """Folder of the course."""
    submission: str = "labs"
    lab: str | None = None
    criterion: str | None = None
    device: str = "auto"
    seed: int | None = None
    report: str = "grade-report"
    overrides: str | None = None
    student: str | None = None
    """Whose overrides apply; the folder's name without it."""
    time_limit: float | None = None
    jobs: int | None = None
    origin: str = "."
    """The folder that whoever asks is in."""

    @property
    def folder(self) -> Path:
        """What is graded."""
        return Path(self.origin) / self.submission

    @property
    def report_folder(self) -> Path:
        return Path(self.origin) / self.report

    def order(self) -> Order:
        """What these options mean.

        Raises:
            GradingError, ValueError, DeviceError: they cannot be met; the message is one line that says what to do.
        """
        if self.seed is not None and self.seed < 0:
            raise GradingError(f"--grade-seed {self.seed}: a seed is 0 or larger, as a report prints it")
        if self.time_limit is not None and not self.time_limit > 0:
            raise GradingError(f"--time-limit {self.time_limit:g}: expected seconds, more than 0")
        if self.jobs is not None and self.jobs < 1:
            raise GradingError(f"--jobs {self.jobs}: expected 1 or more")
        course = courses.load(Path(self.course))
        course.prepare()
        rubric, labs = course.select(self.lab, self.criterion)
        device = devices.parse(self.device, course.devices)
        return Order(
            course=course,
            submission=self.folder,
            rubric=rubric,
            labs=labs,
            device=device,
            seed=self.seed if self.seed is not None else new_seed(),
            name=self.submission,
            overrides=self._given(course, rubric),
            time_limit_seconds=self.time_limit or (None if device.serial else TIME_LIMIT_SECONDS),
            jobs=self.jobs or _jobs(sum(len(criterion.checks) for lab in labs for criterion in lab.criteria)),
        )

    def _given(self, course: Course, rubric: Rubric) -> tuple[given.Override, ...]:
        """The points given by hand to this student."""
        student = self.student or self.folder.resolve().name
        if self.overrides is not None:
            path = Path(self.origin) / self.overrides
            if path.resolve().is_relative_to(self.folder.resolve()):
                raise given.OverrideError(
                    f"{path} lies in the submission: overrides are the instructor's, keep them outside"
                )
        else:
            # Not the one of the folder somebody happens to be in: that may be the submission's, or beside it.
            path = course.folder.parent / given.DEFAULT_FILE
            if not path.is_file() or path.resolve().is_relative_to(self.folder.resolve()):
                return ()
        return tuple(override for override in given.load(path, rubric) if override.student == student)
