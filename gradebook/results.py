"""What is known of a class: its students as they were taken in, what is graded, and what came out. Only data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal

from gradebook.command_name import command
from gradebox.course.contact import NOBODY, Contact
from gradebox.run.grade import Grade, LatePenalty, Outcome
from gradebox.run.overrides import Override

Status = Literal[
    "graded", "waiting", "missing", "refused", "could_not_grade", "could_not_fetch", "no_repository", "excused"
]
"""`could_not_fetch`: the way to the repository failed; `no_repository`: where the class looks there is none for us;
`excused`: the work, if there is any, does not count."""


class GradebookError(ValueError):
    """There is no gradebook to read, or it cannot be read; the message is one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Student:
    """One student, and what became of what they handed in."""

    student: str
    name: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    status: Literal["taken", "partly", "kept", "missing", "refused", "undecided", "could_not_fetch", "no_repository"]
    """`partly`: of a team, without what could not be fetched, or without any code; `kept`: what an earlier run took
    in, because nothing could be fetched now; `undecided`: refused until a person says which of it counts."""
    reason: str = ""
    """Why there is nothing to grade; of what was taken, what the student should know of that."""
    submitted_at: datetime | None = None
    commit: str | None = None
    content: str | None = None
    """SHA-256 of the submission, by which its copy is found."""
    taken_at: datetime | None = None
    """When these files were taken in first."""
    team: str = ""
    """The name of the team, where somebody said it."""
    teammates: tuple[str, ...] = ()
    """Whose the same submission is as well."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One submission to be graded, wholly or by some criteria."""

    content: str
    """SHA-256 of the submission, which names it."""
    students: tuple[str, ...]
    """The keys of who handed it in."""
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
    names: tuple[str, ...] = ()
    """What people call the students, if not by their keys."""

    @property
    def label(self) -> str:
        """For people: who handed it in."""
        first, *others = self.names or self.students
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


@dataclass(frozen=True, kw_only=True)
class Remark:
    """What a grader said, and what it added to the points; None where it was only said."""

    text: str
    points: Decimal | None = None


@dataclass(frozen=True, kw_only=True)
class ManualCriterion:
    """What people gave for one criterion of theirs."""

    id: str
    title: str
    points: Decimal | None
    """None: nobody has given any yet, or they were given for other files than count now."""
    max_points: Decimal
    remarks: tuple[Remark, ...] = ()
    former: Decimal | None = None
    """Points for what was handed in before, which count for nothing; `remarks` are then about that."""
    by: str = ""
    at: datetime | None = None
    about: str = ""
    """What is asked."""


@dataclass(frozen=True, kw_only=True)
class LineNote:
    """What a grader said about a line of code."""

    file: str
    line: int | None
    """None: the line is not in what was handed in last."""
    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ManualResult:
    """What people gave one submission, in addition to the points of the checks."""

    title: str
    criteria: tuple[ManualCriterion, ...]
    released: bool
    """Whether it counts, and students may see it."""
    anew: bool = False
    """Whether something was given for other files, and nobody has looked again."""

    @property
    def complete(self) -> bool:
        return all(criterion.points is not None for criterion in self.criteria)

    @property
    def points(self) -> Decimal:
        """Those that were given so far."""
        return sum((criterion.points for criterion in self.criteria if criterion.points is not None), Decimal(0))

    @property
    def max_points(self) -> Decimal:
        return sum((criterion.max_points for criterion in self.criteria), Decimal(0))


@dataclass(frozen=True, kw_only=True)
class ReportResult:
    """What people gave the report of one lab, instead of the points of its check."""

    title: str
    criteria: tuple[ManualCriterion, ...]
    released: bool
    anew: bool
    lab: int
    check: str
    """The check that is replaced."""
    worth: Decimal
    """The points of the lab that the report can earn."""
    automatic: Outcome
    """What the check found, which is shown and gives no points."""

    @property
    def complete(self) -> bool:
        return all(criterion.points is not None for criterion in self.criteria)

    @property
    def counts(self) -> bool:
        """Whether the points are in the score, and students may see them."""
        return self.complete and self.released

    @property
    def given(self) -> Decimal:
        """What people gave so far, in the points of their rubric."""
        return sum((criterion.points for criterion in self.criteria if criterion.points is not None), Decimal(0))

    @property
    def most(self) -> Decimal:
        """What they can give."""
        return sum((criterion.max_points for criterion in self.criteria), Decimal(0))

    @property
    def points(self) -> Decimal:
        """The same in the points of the lab, to a hundredth."""
        return (self.given * self.worth / self.most).quantize(Decimal("0.01"))


@dataclass(frozen=True, kw_only=True)
class RegradeRequest:
    """A student asks that somebody look again."""

    id: str
    student: str
    text: str
    asked_at: datetime
    about: str = ""
    """A criterion; empty for the whole."""
    answer: str = ""
    answered_by: str = ""
    answered_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Excused:
    """What does not count of a student, and why."""

    student: str
    reason: str
    lab: int | None = None
    """None: everything."""
    by: str = ""
    """Who decided it."""
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class HeldBack:
    """Whose score and feedback are in no export for now, and why."""

    student: str
    reason: str
    """For graders only."""
    by: str = ""
    at: datetime | None = None


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
    """With a time zone, the course's if it has one; None where it is not known."""
    deadline: datetime | None = None
    """The student's own; None if there is none."""
    commit: str | None = None
    taken_at: datetime | None = None
    """When what counts was taken in first."""
    team: str = ""
    teammates: tuple[str, ...] = ()
    """Whose the same submission is as well."""
    late: LatePenalty | None = None
    grade: Grade | None = None
    """With overrides applied, without the penalty; of a graded submission, or of points that were given instead of
    one."""
    score: Decimal | None = None
    """What counts: the checks' points less the penalty, at least 0, and what people gave where that is released.
    Missing and refused submissions have 0, open and excused ones None."""
    checks_score: Decimal | None = None
    """The part of it that checks and overrides gave, less the penalty."""
    manual: ManualResult | None = None
    """What people gave; None where they grade nothing of it."""
    reports: tuple[ReportResult, ...] = ()
    """What people gave for reports, whose points are in `grade` if they count."""
    line_notes: tuple[LineNote, ...] = ()
    """What graders said about lines of code, if that is released."""
    requests: tuple[RegradeRequest, ...] = ()
    excused: tuple[Excused, ...] = ()
    """What does not count. If only some labs count, `score` is in proportion: they count for the whole."""
    overrides: tuple[Override, ...] = ()
    """Points that an instructor gave instead of those of checks, whether or not they have an effect."""
    held_back: HeldBack | None = None
    """Why no export has the score and the feedback; `score` is there all the same."""
    withheld: bool = False
    """Whether there is no score only until a person says that it stands: it may be no fault of the student's."""
    score_if_accepted: Decimal = Decimal(0)
    """What stands then."""
    earlier: tuple[str, ...] = ()
    """Folders of the class with what was handed in before and did not come again."""
    overrides_for_other_files: tuple[Override, ...] = ()
    """Those that were given while other files counted."""
    outdated: bool = False
    """Whether older work counts, because nothing could be fetched in the last run."""
    partly: bool = False
    """Whether something is missing that was handed in, or should have been, so that the rest counts alone."""

    @property
    def by_hand(self) -> tuple[ManualCriterion, ...]:
        """All that people grade of it, in addition to checks or instead of them."""
        beside = self.manual.criteria if self.manual is not None else ()
        return (*beside, *(criterion for report in self.reports for criterion in report.criteria))

    @property
    def graded_by_hand(self) -> bool:
        """Whether people are finished with it."""
        return all(criterion.points is not None for criterion in self.by_hand)

    @property
    def graded_anew(self) -> bool:
        """Whether something was given for other files, and nobody has looked again."""
        return (self.manual is not None and self.manual.anew) or any(report.anew for report in self.reports)


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """A class as it stands; students are in the order of the roster."""

    title: str
    made_at: datetime
    rubric_version: str
    grader_version: str
    seed: int
    device: str
    labs: tuple[int, ...]
    max_score: Decimal
    """With what people give, where that is released."""
    students: tuple[StudentResult, ...]
    manual_title: str = ""
    """What people grade; empty where they grade nothing."""
    manual_max: Decimal = Decimal(0)
    """What they can give."""
    manual_released: bool = False
    reports_title: str = ""
    """What people grade instead of checks; empty if they do not."""
    reports_released: bool = False
    contact: Contact = NOBODY
    """Where students get help, as the course said in the last run."""
    folder: Path | None = None
    """The class's, for commands that messages name."""

    def command(self, name: str) -> str:
        """What to type for a command about this class."""
        return f"{command()} {name} {'CLASS' if self.folder is None else shlex.quote(str(self.folder))}"

    @property
    def checks_max(self) -> Decimal:
        """The points of checks alone."""
        return self.max_score - (self.manual_max if self.manual_released else Decimal(0))
