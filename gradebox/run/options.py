"""What a person asks for in one grading, as typed. What follows from it is `request_builder.py`'s to say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TIME_LIMIT_SECONDS = 600.0
"""For a whole grading: ten times what the reference takes. On a device that is measured only who asks has one."""


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
    """The caller's current folder."""

    @property
    def folder(self) -> Path:
        """What is graded."""
        return Path(self.origin) / self.submission

    @property
    def report_folder(self) -> Path:
        return Path(self.origin) / self.report
