"""What students handed in before, as the gradebook knows it: work that is nobody's by now, and points that a submission
lost because files did not come again.

Not for the last run alone (`run_before.py`), nor for zeros that wait (`missing.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from gradebook.intake.collect import STORE
from gradebook.results import Student, StudentResult
from gradebook.text_files import some
from gradebox.course.rubric import Lab
from gradebox.report.document import points as shown
from gradebox.run.grade import Grade
from gradebox.run.overrides import Override

LabPoints = Callable[[str, Lab], Decimal | None]
"""What a submission, by its content, has in a lab; None if that is not known any more."""


@dataclass(frozen=True)
class EarlierWork:
    """All that was ever graded in a class."""

    gradings: Sequence[tuple[str, str, datetime]]
    """Students, by the keys of their run, with a submission and when it was graded; in the order of time."""
    folder: Path
    """The class's."""

    @functools.cached_property
    def _of(self) -> Mapping[str, Sequence[tuple[str, datetime]]]:
        """By student: submissions, and when they were graded."""
        by_student: dict[str, list[tuple[str, datetime]]] = {}
        for student, content, at in self.gradings:
            by_student.setdefault(student, []).append((content, at))
        return by_student

    def nobodys(self, students: Sequence[Student], former: Collection[str]) -> list[str]:
        """Names under which something was handed in that counts for nobody now.

        Args:
            students: everybody.
            former: the keys of all who ever were in a roster.
        """
        contents = {student.content for student in students}
        keys = {student.student for student in students}
        claimed = {name for name, content, _ in self.gradings if content in contents}
        names = {name for name, _, _ in self.gradings} - claimed - keys - {*former}
        # The work of an earlier run stays with the only one who is called so.
        return [
            name
            for name in sorted(names)
            if sum(name in (student.name, *student.columns.values()) for student in students) != 1
        ]

    def without_lost_points(
        self, line: StudentResult, content: str | None, labs: Sequence[Lab], points_of: LabPoints
    ) -> StudentResult:
        """The line; without its score, if only a part of the earlier submission came again, and points are lost.

        So it is if a lab had points and has none now: perhaps an empty copy was handed in over it.

        An override in that lab says that a person has looked.

        Args:
            line: a student's, with all points.
            content: of what counts.
            labs: those that count for the student.
            points_of: reads the gradebook.
        """
        before = dict.fromkeys(other for other, _ in self._of.get(line.student, ()) if other != content)
        if not before or line.score is None or line.status not in ("graded", "refused"):
            return line
        if content is None:
            if line.overrides:
                return line
            latest = next(reversed(before))
            reason = f"{line.reason}; an earlier submission was graded"
            return replace(
                line, score=None, checks_score=None, withheld=True, reason=reason, earlier=(self._place(latest),)
            )
        if line.grade is None:
            return line
        decided = {override.criterion.partition(".")[0] for override in line.overrides}
        reasons, places = [], []
        for lab in labs:
            lost = {
                other: gone
                for other in before
                if lab.id not in decided and (gone := self._gone(other, content, lab, line.grade, points_of))
            }
            if lost:
                latest = next(reversed(lost))
                reasons.append(lost[latest])
                places.append(f"{self._place(latest)}/{lab.package}")
        if not reasons:
            return line
        return replace(
            line, score=None, checks_score=None, withheld=True, partly=True, score_if_accepted=line.score,
            reason="; ".join(filter(None, (line.reason, *reasons))), earlier=tuple(places),
        )  # fmt: skip

    def _gone(self, before: str, now: str, lab: Lab, grade: Grade, points_of: LabPoints) -> str:
        """What to say of a lab that lost all its points, or of which files did not come again, if that costs points.

        Empty if it costs none.
        """
        earlier, present = (_files(self.folder / self._place(content) / lab.package) for content in (before, now))
        has = next((row.points for row in grade.labs if row.id == lab.id), Decimal(0))
        if not present < earlier:  # whoever adds or renames a file has handed in another lab
            lost = None if has else points_of(before, lab)
            return f"{lab.package} had {shown(lost)} points in an earlier submission, and has 0 now" if lost else ""
        had = points_of(before, lab)
        if (had is None and present) or (had is not None and had <= has):
            return ""
        what = lab.package if not present else some([f"{lab.package}/{name}" for name in sorted(earlier - present)], 3)
        was = "was" if not present or len(earlier - present) == 1 else "were"
        with_points = "" if had is None else f", with {shown(had)} points for the lab instead of {shown(has)}"
        return f"{what} {was} in an earlier submission{with_points}, and did not come again"

    def _place(self, content: str) -> str:
        return f"{STORE}/{content}/labs"

    def for_other_files(self, line: StudentResult, content: str | None) -> tuple[Override, ...]:
        """Overrides that were given while other files counted than do now."""
        texts = []
        for override in line.overrides:
            if override.at is None or line.taken_at is None or override.at >= line.taken_at:
                continue
            then = [other for other, at in self._of.get(line.student, ()) if at <= override.at]
            if not then or then[-1] != content:
                texts.append(override)
        return tuple(texts)


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
