"""What came out of grading a class, for whoever shows or exports it. Only data; not for grading or for storing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Literal

from gradebox.grade import Grade, LatePenalty

Status = Literal["graded", "waiting", "missing", "refused", "could_not_grade", "could_not_fetch", "no_repository"]
"""`could_not_fetch`: the way to the repository failed; `no_repository`: where the class looks there is none for us."""


class GradebookError(ValueError):
    """There is no gradebook to read, or it cannot be read; the message is one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class StudentResult:
    """One student's line in the gradebook."""

    student: str
    """The key: the name of the folder, archive or repository, or the roster's."""
    name: str = ""
    """For people; empty where nobody said it."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The roster's row as it was read."""
    status: Status
    reason: str = ""
    """Why there is no grade, or what does not count of a graded submission: one line."""
    submitted_at: datetime | None = None
    """With a time zone; None where it is not known."""
    commit: str | None = None
    team: str = ""
    teammates: tuple[str, ...] = ()
    """Whose the same submission is as well."""
    late: LatePenalty | None = None
    grade: Grade | None = None
    """With overrides applied, without the penalty; only of a graded submission."""
    score: Decimal | None = None
    """The grade's score less the penalty, at least 0. Missing and refused submissions have 0, open ones None."""
    withheld: bool = False
    """Whether there is no score only until a person says that 0 stands: it may be no fault of the student's."""
    outdated: bool = False
    """Whether older work counts, because nothing could be fetched in the last run."""


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """A class as it stands; students are sorted by key."""

    title: str
    made_at: datetime
    rubric_version: str
    grader_version: str
    seed: int
    device: str
    labs: tuple[int, ...]
    max_score: Decimal
    students: tuple[StudentResult, ...]
