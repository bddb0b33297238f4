"""What we ask of Canvas: the course, the assignment, its students, what they have, and to change that for many at once.

Fields are named as Canvas's documentation names them (Courses, Assignments, Users, Sections, Submissions, Progress;
what `update_grades` does with them, in its `SubmissionsApiController` and `Submission.process_bulk_update`). Not for
deciding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from gradebook.plugins.canvas_push.client import Client, NotThere, PushError
from gradebox.common import reading

T = TypeVar("T")

SIS_COURSE = "sis_course_id:"
_LOOKED_UP = re.compile(r"[\w.@+-]+", re.ASCII)
"""Identifiers that an address can hold as they are."""


@dataclass(frozen=True)
class Course:
    """A course; its number is in its address."""

    id: int
    name: str = ""


@dataclass(frozen=True)
class Assignment:
    """What of an assignment decides whether and how grades can be sent to it."""

    id: int
    name: str
    points_possible: Decimal | None = None
    grading_type: str = "points"
    published: bool | None = None
    post_manually: bool | None = None
    """Whether grades are hidden from students until somebody posts them."""
    moderated_grading: bool | None = None
    grades_published: bool | None = None
    anonymize_students: bool | None = None
    group_category_id: int | None = None
    grade_group_students_individually: bool | None = None

    @property
    def grades_groups(self) -> bool:
        """Whether a grade for one member is everybody's."""
        return self.group_category_id is not None and not self.grade_group_students_individually


@dataclass(frozen=True)
class Enrollment:
    """In which section somebody is."""

    course_section_id: int | None = None


@dataclass(frozen=True)
class Person:
    """A student of the course. A field that the owner of the token may not see is None."""

    id: int
    name: str | None = None
    sis_user_id: str | None = None
    login_id: str | None = None
    email: str | None = None
    enrollments: tuple[Enrollment, ...] = ()

    @property
    def sections(self) -> frozenset[int]:
        """Numbers of the sections that they are in."""
        return frozenset(
            enrollment.course_section_id for enrollment in self.enrollments if enrollment.course_section_id is not None
        )


@dataclass(frozen=True)
class Section:
    """A section of the course."""

    id: int
    name: str = ""


@dataclass(frozen=True)
class Comment:
    """A comment on a submission; an anonymous one has no author."""

    comment: str | None = None
    author_id: int | None = None


@dataclass(frozen=True)
class Group:
    """The group that a submission is of."""

    id: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class Submission:
    """What one student has in this assignment."""

    user_id: int
    submitted_at: str | None = None
    """The last time that the student handed in; None if never."""
    entered_score: Decimal | None = None
    """Before Canvas's own late policy takes from it."""
    score: Decimal | None = None
    grader_id: int | None = None
    """None where nobody has graded; a score is then Canvas's own, by its rule for missing submissions."""
    excused: bool | None = None
    points_deducted: Decimal | None = None
    submission_comments: tuple[Comment, ...] = ()
    group: Group | None = None


@dataclass(frozen=True)
class Progress:
    """How far Canvas is with what it was asked to do."""

    id: int
    workflow_state: str
    message: str | None = None

    @property
    def over(self) -> bool:
        return self.workflow_state in ("completed", "failed")


@dataclass(frozen=True)
class Grading:
    """What is to become of one submission; what is None stays."""

    posted_grade: str | None = None
    excuse: bool = False
    text_comment: str | None = None


class Canvas:
    """One course of a Canvas, with its assignment."""

    def __init__(self, client: Client, course: str) -> None:
        """`course` is its number, or `sis_course_id:...`. Raises `PushError`."""
        if not re.fullmatch(rf"(\d+|{SIS_COURSE}{_LOOKED_UP.pattern})", course, re.ASCII):
            raise PushError(f"--course {course}: expected the number in its address, or {SIS_COURSE} with its SIS ID")
        self._client = client
        try:
            self.course = _read(Course, client.get(f"courses/{course}"))
        except NotThere:
            raise NotThere(
                f"there is no course {course} at {client.origin}, or not for the owner of this token"
            ) from None
        self._path = f"courses/{self.course.id}"

    def assignment(self, named: str) -> Assignment:
        """The assignment with this number, or of exactly this name.

        Raises:
            PushError: there is none, or more than one has the name.
        """
        if named.isdecimal():
            try:
                return _read(Assignment, self._client.get(f"{self._path}/assignments/{named}"))
            except NotThere:
                raise NotThere(f"the course {self.course.name!r} has no assignment {named}") from None
        every = _every(Assignment, self._client.pages(f"{self._path}/assignments"))
        matches = [assignment for assignment in every if assignment.name == named]
        if len(matches) > 1:
            numbers = ", ".join(str(assignment.id) for assignment in matches)
            raise PushError(f"{len(matches)} assignments are called {named!r}: name one by its number, of {numbers}")
        if not matches:
            names = ", ".join(repr(assignment.name) for assignment in every[:10]) or "none at all"
            raise NotThere(f"no assignment is called {named!r}; there are {names}. Name one with --assignment")
        return matches[0]

    def me(self) -> int:
        """The number of the token's owner."""
        return _read(Person, self._client.get("users/self")).id

    def students(self) -> list[Person]:
        """Everybody who takes the course, those who have finished or were invited included."""
        states = ("active", "invited", "completed", "inactive")
        fields = [
            ("enrollment_type[]", "student"),
            ("include[]", "enrollments"),
            ("include[]", "email"),
            *(("enrollment_state[]", state) for state in states),
        ]
        return _every(Person, self._client.pages(f"{self._path}/users", fields))

    def looked_up(self, kind: str, value: str) -> int | None:
        """The number of the student whose `sis_user_id` or `sis_login_id` this is; None where there is none."""
        if not _LOOKED_UP.fullmatch(value):
            return None
        try:
            return _read(Person, self._client.get(f"{self._path}/users/{kind}:{value}")).id
        except NotThere:
            return None

    def section(self, named: str) -> Section:
        """The section with this number or of exactly this name. Raises `PushError`."""
        every = _every(Section, self._client.pages(f"{self._path}/sections"))
        matches = [section for section in every if named in (str(section.id), section.name)]
        if len(matches) != 1:
            names = ", ".join(f"{section.name!r} ({section.id})" for section in every) or "none"
            raise PushError(f"--section {named}: {len(matches)} sections are called so; there are {names}")
        return matches[0]

    def submissions(self, assignment: Assignment) -> dict[int, Submission]:
        """What every student has, by their number."""
        fields = [("include[]", "submission_comments"), ("include[]", "group")]
        path = f"{self._path}/assignments/{assignment.id}/submissions"
        return {submission.user_id: submission for submission in _every(Submission, self._client.pages(path, fields))}

    def update(self, assignment: Assignment, gradings: Mapping[int, Grading]) -> Progress:
        """Have Canvas change many submissions; it does so after it has answered."""
        path = f"{self._path}/assignments/{assignment.id}/submissions/update_grades"
        fields = [pair for user, grading in gradings.items() for pair in _fields(user, grading)]
        return _read(Progress, self._client.post(path, fields))

    def progress(self, number: int) -> Progress:
        """How far it is."""
        return _read(Progress, self._client.get(f"progress/{number}"))


def _fields(user: int, grading: Grading) -> Sequence[tuple[str, str]]:
    fields = []
    if grading.excuse:
        fields.append((f"grade_data[{user}][excuse]", "true"))
    elif grading.posted_grade is not None:
        fields.append((f"grade_data[{user}][posted_grade]", grading.posted_grade))
    if grading.text_comment is not None:
        fields.append((f"grade_data[{user}][text_comment]", grading.text_comment))
    return fields


def _read(kind: type[T], data: Any) -> T:
    try:
        return reading.value(kind, data, Path("Canvas"), lenient=True)
    except reading.ReadingError as error:
        raise PushError(f"this Canvas does not answer as its documentation says: {error}") from None


def _every(kind: type[T], data: Iterable[Any]) -> list[T]:
    return [_read(kind, entry) for entry in data]
