"""A class as the exports show it: each student's line with the grade read once, a file name, and what is still open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from gradebook.export import reviews
from gradebook.results import ClassResult, StudentResult
from gradebook.roster import KEYS
from gradebook.text_files import file_names, with_name
from gradebox.run.endings import COURSE_IS_WRONG
from gradebox.run.grade import CriterionResult, Grade


@dataclass(frozen=True, kw_only=True)
class Line:
    """One student."""

    result: StudentResult
    grade: Grade | None
    file_name: str
    """For files about this student, without a suffix."""
    open: tuple[reviews.Item, ...]
    """What a person still has to look at."""
    most: Decimal
    """What the class can earn."""
    mates: tuple[str, ...] = ()
    """Whose the same work is as well, as they are called."""
    accepted: tuple[reviews.Accepted, ...] = ()
    """What somebody has looked at."""

    @property
    def student(self) -> str:
        return self.result.student

    @property
    def identifier(self) -> str:
        """The key for platforms: that of the roster as it is now, also if the class keeps another one."""
        columns = self.result.columns
        current = next((columns[name] for name in KEYS if columns.get(name)), self.student)
        return self.student if self.student in columns.values() else current

    @property
    def who(self) -> str:
        """The key, with the name if the key does not show it: for messages to the course staff."""
        return with_name(self.result.student, self.result.name)

    @property
    def label(self) -> str:
        """The name for people, or the key where nobody said it."""
        return self.result.name or self.result.student

    @property
    def checks_score(self) -> Decimal | None:
        """What checks and overrides gave, less the penalty."""
        return self.result.score if self.result.checks_score is None else self.result.checks_score

    @property
    def decided(self) -> bool:
        """Whether there is a score to hand over. What waits, or was not fetched or graded, has none; nor has who is
        missing but may have handed in under another name, until somebody says that the 0 stands; nor who is held
        back."""
        return self.result.score is not None and not self.is_held_back

    @property
    def is_held_back(self) -> bool:
        """Whether somebody keeps the score and the feedback from leaving."""
        return self.result.held_back is not None

    @property
    def excused_on_platforms(self) -> bool:
        """Whether a platform may show that the student is excused; Canvas hides that too while a grade is hidden."""
        return self.result.status == "excused" and not self.is_held_back

    def as_exported(self) -> Line:
        """The line as it may leave: without points and messages if they are held back."""
        if not self.is_held_back:
            return self
        emptied = replace(
            self.result, grade=None, score=None, checks_score=None, late=None, manual=None, reports=(), line_notes=(),
            reason="", requests=(),
        )  # fmt: skip
        return replace(self, result=emptied, grade=None, open=())

    @property
    def given_instead(self) -> bool:
        """Whether people gave points instead of a submission, so that nothing ran."""
        return self.grade is not None and self.result.status != "graded"

    @property
    def waits(self) -> bool:
        """Whether there is no score until somebody decides whether this is all of the work."""
        return self.result.withheld and self.result.score is None

    @property
    def by_hand_alone(self) -> bool:
        """Whether no check gives any points, so that people alone grade it and nobody can pass."""
        return self.grade is not None and not self.grade.max_score

    @property
    def passed(self) -> bool:
        """By points of checks and reports, less the penalty for lateness; additional points do not count."""
        if self.grade is None or self.by_hand_alone:
            return False
        lost = self.result.late.points if self.result.late else Decimal(0)
        return self.grade.score - lost >= self.grade.pass_score


@dataclass(frozen=True, kw_only=True)
class View:
    """A class with its lines, sorted by key."""

    result: ClassResult
    lines: tuple[Line, ...]

    @property
    def graded(self) -> tuple[Line, ...]:
        """Those with a submission that was graded; not those who only were given points instead of one."""
        return tuple(line for line in self.lines if line.grade is not None and line.result.status == "graded")

    @property
    def counted(self) -> tuple[Line, ...]:
        """Those of the graded who count in averages and statistics: not who is outside the roster, or has left it."""
        strangers = {line.student for line in self.strangers}
        return tuple(line for line in self.graded if line.student not in strangers)

    @property
    def excused(self) -> tuple[Line, ...]:
        """Those whom a platform may show as excused."""
        return tuple(line for line in self.lines if line.excused_on_platforms)

    @property
    def by_hand_open(self) -> tuple[Line, ...]:
        """Those whose submission people have not graded to its end, or for other files than count now."""
        outside = {line.student for line in self.strangers}
        return tuple(line for line in self.lines if not line.result.graded_by_hand and line.student not in outside)

    @property
    def to_read(self) -> tuple[Line, ...]:
        """One line for each submission that people grade, of a team the first; not of who is outside the roster."""
        outside = {line.student for line in self.strangers}
        first: dict[tuple[str, ...], Line] = {}
        for line in self.lines:
            # Points instead of a submission leave nothing to read.
            if line.result.by_hand and line.result.status == "graded" and line.student not in outside:
                first.setdefault(tuple(sorted((line.student, *line.result.teammates))), line)
        return tuple(first.values())

    @property
    def undecided(self) -> tuple[Line, ...]:
        """Those who have no score yet; who is excused will have none."""
        return tuple(line for line in self.lines if line.result.score is None and line.result.status != "excused")

    @property
    def held_back(self) -> tuple[Line, ...]:
        """Those whose score and feedback do not leave for now."""
        return tuple(line for line in self.lines if line.is_held_back)

    @property
    def waiting(self) -> tuple[Line, ...]:
        """Those whose grading was interrupted before it began or ended."""
        return tuple(line for line in self.lines if line.result.status == "waiting")

    @property
    def broken(self) -> tuple[Line, ...]:
        """Those whose grading broke down, for a reason that a person has to remove."""
        return tuple(line for line in self.lines if line.result.status == "could_not_grade")

    @property
    def remarked(self) -> tuple[tuple[str, tuple[Line, ...]], ...]:
        """What is to be known of files of the graded, each text once, with all whom it is about."""
        lines: dict[str, list[Line]] = {}
        for line in self.graded:
            if line.result.reason:
                lines.setdefault(line.result.reason, []).append(line)
        return tuple((reason, tuple(theirs)) for reason, theirs in lines.items())

    @property
    def strangers(self) -> tuple[Line, ...]:
        """Those who handed in and are not in the roster, where there is one."""
        if not any(line.result.columns for line in self.lines):
            return ()
        return tuple(line for line in self.lines if not line.result.columns)

    @property
    def for_platforms(self) -> tuple[Line, ...]:
        """Those whom a learning platform can know and who have a score."""
        return tuple(line for line in self.lines if line.decided and line not in self.strangers)

    @property
    def open(self) -> tuple[reviews.Item, ...]:
        return tuple(item for line in self.lines for item in line.open)

    @property
    def criteria(self) -> tuple[CriterionResult, ...]:
        """Those that count, in the rubric's order, as some student's grade has them; empty before the first grade."""
        grades = [line.grade for line in self.graded if line.grade]
        criteria: dict[str, CriterionResult] = {}
        for grade in grades:
            for lab in grade.labs:
                for criterion in lab.criteria:
                    if criterion.available:
                        criteria.setdefault(criterion.id, criterion)
        return tuple(criteria.values())

    def line(self, student: str) -> Line | None:
        return next((line for line in self.lines if line.student == student), None)


def of(result: ClassResult, accepted: Sequence[reviews.Accepted] = ()) -> View:
    """Read every grade of a class.

    Raises:
        ValueError: a grade in the gradebook is none that this version can read.
    """
    names = file_names(student.student for student in result.students)
    called = {student.student: student.name or student.student for student in result.students}
    lines = []
    for student in result.students:
        grade = student.grade
        items: Iterable[reviews.Item] = () if grade is None else reviews.items(student.student, grade)
        if (handing_in := reviews.handing_in(student)) is not None:
            items = (handing_in, *items)
        still_open = reviews.still_open(items, accepted)
        if student.withheld and not any(item.criterion == reviews.HANDING_IN for item in still_open):
            student = replace(student, score=student.score_if_accepted)
        if (faulty := next((item for item in still_open if item.of_course), None)) is not None:
            # A regrade with a broken course must take no points: there is no score until somebody repairs or decides.
            why = f"{faulty.check}: {faulty.detail}: {COURSE_IS_WRONG}"
            student = replace(student, status="could_not_grade", reason=why, score=None, checks_score=None, grade=None)
            grade = None
        lines.append(
            Line(
                result=student,
                grade=grade,
                file_name=names[student.student],
                open=still_open,
                most=result.max_score,
                mates=tuple(called.get(teammate, teammate) for teammate in student.teammates),
                accepted=tuple(entry for entry in accepted if entry.student == student.student),
            )
        )
    return View(result=result, lines=tuple(lines))


def share(points: Decimal, of_points: Decimal) -> float:
    """Points as a share from 0 to 1; 0 where there are none to earn."""
    return float(points / of_points) if of_points else 0.0
