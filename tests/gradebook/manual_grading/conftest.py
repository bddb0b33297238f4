"""A class of three, two of them a team, of which people grade the reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from gradebook.grading import class_summary
from gradebook.grading.manual_grading import comments, marks, units
from gradebook.grading.manual_grading.comments import Comment
from gradebook.grading.manual_grading.marks import Mark
from gradebook.results import ClassResult, StudentResult
from gradebook.store import Gradebook
from tests.gradebook.conftest import SmallClass

RUBRIC = """title = "Report"
released = {released}
blind = {blind}

[[criterion]]
id = "discussion"
title = "Discussion of the results"
points = 6

[[criterion]]
id = "figures"
title = "Figures"
points = 4
start = "zero"
lab = 1
about = "Axes and units."
"""
ROSTER = "student,name,team\nada,Ada Lovelace,\nbob,Bob,blue\ncleo,Cleo,blue\neve,Eve,\n"
UNITS = "no unit on the axis"
AT = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


@dataclass
class ManualClass:
    """A graded class with a rubric for people."""

    small: SmallClass

    @property
    def folder(self) -> Path:
        return self.small.out

    def write_rubric(self, *, released: bool = False, blind: bool = False, text: str = RUBRIC) -> None:
        path = self.folder / "manual_grading" / "rubric.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(released=str(released).lower(), blind=str(blind).lower()))

    def units(self) -> dict[str, units.Unit]:
        with Gradebook(self.folder, locked=False) as gradebook:
            return {unit.key: unit for unit in units.of(gradebook.students())}

    def line(self, student: str) -> StudentResult:
        return next(row for row in self.read().students if row.student == student)

    def read(self) -> ClassResult:
        return class_summary.read(self.folder)

    def give(self, key: str, criterion: str, by: str = "Ana", **changes: object) -> Mark:
        """A finished mark instead of what is there."""
        now = marks.load(self.folder, key).get(criterion)
        made = Mark(criterion=criterion, content=self.units()[key].content, by=by, at=AT, done=True)
        made = replace(made, revision=now.revision if now else 0, **changes)  # type: ignore[arg-type]
        return marks.change(self.folder, key, made)

    def comments(self, said: Sequence[tuple[str, str, str]]) -> None:
        """Reusable comments, each an id, a criterion and points."""
        comments.save(self.folder, [Comment(name, criterion, UNITS, Decimal(value)) for name, criterion, value in said])


@pytest.fixture
def manual(small_class: SmallClass, tmp_path: Path) -> ManualClass:
    for name in ("ada", "bob"):
        folder = small_class.hands_in(name)
        (folder / "lab1_gpu_basics" / "REPORT.md").write_text(f"# Report of {name}\n\nThe GPU is faster.\n")
    (tmp_path / "roster.csv").write_text(ROSTER)
    small_class.grade(roster=tmp_path / "roster.csv")
    made = ManualClass(small_class)
    made.write_rubric()
    return made
