"""What of a class is still to be graded, as tasks, and whom a grading counts for. Grades nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradebook.grading.deduplicate import Shared
from gradebook.intake.collect import Store
from gradebook.results import Student, Task
from gradebook.store import Gradebook, Plan, Recorded
from gradebook.text_files import with_name
from gradebox.course.course import Course
from gradebox.run.endings import WORTH_A_SECOND_LOOK
from gradebox.run.grade import Grade, Outcome


class OpenWork:
    """The tasks of one run of a class."""

    def __init__(
        self,
        gradebook: Gradebook,
        plan: Plan,
        course: Course,
        store: Store,
        students: Sequence[Student],
        seconds: float,
    ) -> None:
        """`seconds`: wall time that a submission may take."""
        self._gradebook = gradebook
        self._plan = plan
        self._course = course
        self._store = store
        self._seconds = seconds
        labs = course.rubric.select(plan.labs)
        self._wanted = tuple(criterion.id for lab in labs for criterion in lab.criteria if criterion.available)
        self._students: dict[str, list[str]] = {}
        for student in students:
            if student.content is not None:
                self._students.setdefault(student.content, []).append(student.student)
        self._names = {student.student: with_name(student.student, student.name) for student in students}
        self._shared: Shared | None = None

    def shared_tasks(self) -> list[Task]:
        """One for each submission with something open that it is not waiting for another to be graded in.

        Results of earlier runs count for every submission with the same lab now. Not for submissions that somebody has
        asked to have graded again: these are graded, and nobody else's grading counts for them.
        """
        known = dict.fromkeys([*self._students, *self._gradebook.graded(self._plan)])
        folders = {content: self._store.path(content) for content in known if content not in self._gradebook.asked_for}
        present = {content: folder for content, folder in folders.items() if folder.is_dir()}
        self._shared = Shared(self._course, self._wanted, present)
        self._share_known(self._shared)
        # The order does not depend on what is done already: a run that goes on asks for the same tasks.
        claimed = {content: self._shared.claim(content, self._wanted) for content in self._students}
        open_ = {
            content: tuple(name for name in claimed[content] if name in criteria)
            for content, criteria in self._open().items()
        }
        return [self._task(content, criteria) for content, criteria in open_.items() if criteria]

    def tasks(self) -> list[Task]:
        """One for each submission with something open; what they find is not shared."""
        self._shared = None
        return [self._task(content, criteria) for content, criteria in self._open().items()]

    def busy_tasks(self) -> list[Task]:
        """Those that a busy or suspended machine left open, and that have not had their second look yet."""
        tasks = []
        for content in self._students:
            counting = self._gradebook.counting(self._plan, content)
            busy = tuple(name for name in self._wanted if name in counting and _was_busy(counting[name], name))
            if busy:
                tasks.append(replace(self._task(content, busy), retry=True))
        return tasks

    def done(self, tasks: Sequence[Task]) -> int:
        """How many submissions have nothing open, and are in none of these tasks."""
        return len(self._students.keys() - self._open().keys() - {task.content for task in tasks})

    def share(self, number: int, content: str, criteria: Sequence[str], grade: Grade | None) -> None:
        """Let what the grading with this number found count for all submissions with the same lab."""
        if self._shared is not None:
            certain = [name for name in criteria if self._shared.is_certain(content, grade, name)]
            shares = [(other, name) for name in certain for other in self._shared.others(content, name)]
            if shares:
                self._gradebook.share(self._plan, number, shares)

    def _share_known(self, shared: Shared) -> None:
        """The newest grading goes first."""
        plan, open_ = self._plan, self._open()
        known = [
            (number, content, name)
            for content in (self._gradebook.graded(plan) if open_ else ())
            for name, number in self._gradebook.numbers(plan, content).items()
            if any(name in open_.get(other, ()) for other in shared.others(content, name))
        ]
        for number, content, name in sorted(known, reverse=True):
            self.share(number, content, (name,), self._gradebook.counting(plan, content)[name].grade)

    def _open(self) -> dict[str, tuple[str, ...]]:
        """By submission the criteria without a grading that counts; submissions with nothing open are left out."""
        open_ = {}
        for content in self._students:
            counting = self._gradebook.numbers(self._plan, content)
            if criteria := tuple(name for name in self._wanted if name not in counting):
                open_[content] = criteria
        return open_

    def _task(self, content: str, criteria: tuple[str, ...]) -> Task:
        plan = self._plan
        return Task(
            content=content,
            students=tuple(self._students[content]),
            names=tuple(self._names[student] for student in self._students[content]),
            folder=self._store.path(content).resolve(),
            labs=plan.labs,
            criteria=criteria,
            whole=criteria == self._wanted,
            seed=plan.seed,
            device=plan.device,
            course=self._course.folder,
            seconds=self._seconds,
        )


def _was_busy(grading: Recorded, criterion: str) -> bool:
    if grading.retry or grading.grade is None:
        return False
    return any(
        check.outcome is Outcome.NEEDS_REVIEW and any(why in check.message for why in WORTH_A_SECOND_LOOK)
        for check in grading.grade.checks
        if check.id.rpartition(".")[0] == criterion
    )
