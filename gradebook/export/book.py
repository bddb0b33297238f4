"""A class on disk as the exports use it: its result, its settings, and what an instructor decides about it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from gradebook.command_name import command
from gradebook.export import changes, decisions, everything, reviews, view
from gradebook.grading import class_summary, excused, held_back
from gradebook.grading.manual_grading import now
from gradebook.identity import Directory, UnknownStudentError
from gradebook.results import ClassResult, Excused, HeldBack
from gradebook.settings import Settings
from gradebook.store import Gradebook
from gradebook.text_files import some
from gradebox.course import rubric
from gradebox.course.rubric import Rubric
from gradebox.report.document import points


@dataclass(frozen=True)
class Book:
    """The class of one folder, as it stood when it was opened."""

    folder: Path
    result: ClassResult
    settings: Settings
    rubric: Rubric
    view: view.View
    configuration: Path
    """The file that described the class; its name where there was none."""
    former: Collection[str]
    """Criteria that were ever graded here."""
    directory: Directory
    """Finds its students by any of their names."""
    changed_settings: str = ""
    """What to say if the file that described it has changed since; empty if it has not."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read a class.

        Raises:
            ValueError: there is no gradebook, or it, the overrides or the reviews cannot be read; one line.
        """
        with Gradebook(folder, locked=False) as gradebook:
            plan = gradebook.plan()
            result = class_summary.of(gradebook)
            points_of = rubric.from_text(gradebook.rubric_text(plan.rubric_digest))
            directory, former = class_summary.directory(gradebook), gradebook.criteria()
        settings = class_summary.stored_settings(plan)
        class_view = view.of(result, reviews.load(folder))
        changed = class_summary.changed_file(plan, folder)
        return cls(
            folder, result, settings, points_of, class_view, Path(plan.settings["file"]), former, directory, changed
        )

    def export(
        self,
        canvas_assignment_id: int | None = None,
        say: Callable[[str], None] = lambda text: None,
        decided: Collection[str] = (),
    ) -> list[Path]:
        """Write all exports again.

        Args:
            canvas_assignment_id: instead of that of `class.toml`.
            say: takes a line about tables that were edited, and about scores that are other ones now.
            decided: students of whose score somebody has just heard.

        Raises:
            ValueError: `[exports]` cannot be used.
        """
        if self.changed_settings:
            say(self.changed_settings)
        before, options = changes.exported(self.folder), self.options(canvas_assignment_id)
        written = everything.write(self.result, self.folder, configuration=options, say=say)
        news = {student: score for student, score in before.scores.items() if student not in decided}
        if changed := changes.text(
            replace(before, scores=news), changes.exported(self.folder), self.result.command("review")
        ):
            say(changed)
        return written

    def changed_course(self, now: Rubric) -> str:
        """What to say if the course's labs, points or pass mark are others by now; empty if they are not."""
        if now.to_text() == self.rubric.to_text():
            return ""
        return (
            "the course has changed (labs, points, checks or pass mark), and the exports are still of the last run: "
            f"{command()} class --out {shlex.quote(str(self.folder))} counts again, and grades only what must be"
        )

    def options(self, canvas_assignment_id: int | None = None) -> everything.Options:
        """Those of `class.toml`, with another assignment if one is named."""
        chosen = everything.options(self.settings.exports)
        return chosen if canvas_assignment_id is None else replace(chosen, canvas_assignment_id=canvas_assignment_id)

    def notices(self, canvas_assignment_id: int | None = None) -> list[str]:
        """What an instructor should know before handing the exports over."""
        return everything.notices(self.result, self.folder, self.options(canvas_assignment_id))

    def keys(self, name: str) -> tuple[str, ...]:
        """The keys of the student, or of everybody in the team, whom this means. Raises `ReviewError`."""
        try:
            return self.directory.keys(name)
        except UnknownStudentError as error:
            alone = ". Name one student or team at a time" if re.search("[,;]", name) else ""
            raise reviews.ReviewError(f"{name!r}: {error}{alone}") from None

    def accept(self, student: str, criterion: str, by: str = "") -> str:
        """Accept what is open; says what was. Raises `ReviewError`."""
        if student == decisions.ALL and self.view.line(student) is None:
            entries = decisions.accept_everybody(self.view, self.folder, criterion, by)
            return f"accepted {criterion} of {', '.join(entry.student for entry in entries)}"
        keys = self.keys(student)
        entries = [entry for key in keys for entry in decisions.accept(self.view, self.folder, key, criterion, by)]
        count = sum(len(entry.items) for entry in entries)
        names = dict.fromkeys(entry.criterion for entry in entries)
        return f"accepted {count} thing{'' if count == 1 else 's'} of {self._called(keys)} in {', '.join(names)}"

    def excuse(self, student: str, lab: str, reason: str, by: str = "") -> str:
        """Let a student, or everybody in a team, off a lab, or `all`; says what was done. Raises `ValueError`."""
        keys = self.keys(student)
        labs = {f"lab{number}": number for number in self.result.labs}
        if lab != decisions.ALL and lab not in labs:
            raise ValueError(f"there is no lab {lab!r} in this class; there are {', '.join(labs)} and all")
        for key in keys:
            excused.add(self.folder, Excused(student=key, reason=reason, lab=labs.get(lab), by=by, at=now()))
        are = "is" if len(keys) == 1 else "are"
        said = f"{self._called(keys)} {are} excused from {lab}; written to {self.folder / excused.FILE}"
        if lab == decisions.ALL and any("Identifier" in line.result.columns for line in self.view.lines):
            said += ". In Moodle tick Excluded for them (Grades, Single view): no file can say it"
        return said

    def hold_back(self, student: str, reason: str, by: str = "") -> str:
        """Keep score and feedback of a student, or of everybody in a team, out of exports. Raises `ValueError`."""
        keys = self.keys(student)
        held_back.add(self.folder, [HeldBack(student=key, reason=reason.strip(), by=by, at=now()) for key in keys])
        mates = sorted({mate for line in self.view.lines if line.student in keys for mate in line.result.teammates})
        others = [mate for mate in mates if mate not in keys]
        are = "is" if len(keys) == 1 else "are"
        said = [f"{self._called(keys)} {are} held back: no export has the score or the feedback; written to "
                f"{self.folder / held_back.FILE}"]  # fmt: skip
        if others:
            said.append(f"the same work counts for {', '.join(others)}, who {'is' if len(others) == 1 else 'are'} not")
        return "\n".join(said)

    def release(self, student: str) -> str:
        """Undo `hold_back`. Raises `ValueError`."""
        keys = self.keys(student)
        entries = [
            entry
            for entry in held_back.load(self.folder)
            if entry.student == student or set(self._known_keys(entry.student)) & set(keys)
        ]
        if not entries:
            held = ", ".join(line.student for line in self.view.held_back) or "nobody"
            raise ValueError(f"{student} is not held back; {held} is")
        held_back.remove(self.folder, entries)
        return f"{self._called(keys)} {'is' if len(keys) == 1 else 'are'} released: the exports have the score again"

    def _called(self, keys: Collection[str]) -> str:
        """The students for people: a key alone may be a word that means everybody."""
        return ", ".join(line.who for line in self.view.lines if line.student in keys)

    def _known_keys(self, name: str) -> tuple[str, ...]:
        try:
            return self.directory.keys(name)
        except UnknownStudentError:
            return ()

    def override(self, student: str, criterion: str, amount: str, reason: str, by: str = "") -> str:
        """Give points by hand, to a student or to everybody in a team; says what was done. Raises `ValueError`."""
        if student == decisions.ALL and self.view.line(student) is None:
            return self._override_all(criterion, amount, reason, by)
        if criterion.startswith("manual."):
            raise ValueError(
                f"people grade {criterion}, and its points are marks: change the mark on the page of {command()} "
                f"manual grade {shlex.quote(str(self.folder))} --as NAME"
            )
        keys = self.keys(student)
        name = keys[0] if len(keys) == 1 else next(line.result.team for line in self.view.lines if line.student in keys)
        file = class_summary.overrides_file(self.settings, self.folder)
        written = decisions.override(file, self.rubric, name, criterion, amount, reason, by, self.former)
        unit = "point" if written.points == 1 else "points"
        whose = self._called(keys) if len(keys) == 1 else name
        said = f"{whose} gets {points(written.points)} {unit} for {criterion}; written to {file}"
        after = type(self).open(self.folder)
        effects = [decisions.effect(self.view, after.view, key, criterion) for key in keys]
        replaced = dict.fromkeys(filter(None, (decisions.replaced(self.view, key, written) for key in keys)))
        return "\n".join([said, *effects, *replaced])

    def _override_all(self, criterion: str, amount: str, reason: str, by: str) -> str:
        """Give these points to everybody who was graded and has fewer; says to whom, and to whom not."""
        file = class_summary.overrides_file(self.settings, self.folder)
        given, as_many, decided = decisions.having_fewer(self.view, self.rubric, criterion, amount)
        written = [
            decisions.override(file, self.rubric, key, criterion, amount, reason, by, self.former) for key in given
        ]
        if not written:
            raise ValueError(f"nobody who was graded has fewer than {amount} points for {criterion}")
        said = [f"{len(written)} of {len(self.view.graded)} students who were graded get {points(written[0].points)} "
                f"points for {criterion}; written to {file}"]  # fmt: skip
        said += [f"{len(as_many)} had as many"] if as_many else []
        said += [f"not for {some(decided)}, of whom an override says something else"] if decided else []
        return "\n".join([*said, "who is graded later needs the command again"])
