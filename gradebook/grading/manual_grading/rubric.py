"""`manual_grading/rubric.toml`: what people grade, and how many points that is worth.

title = "Report"                  # the section's name in every grade
released = false                  # true: students and platforms are given the points
blind = false                     # true: the page shows no names
graders = ["Ana", "Ben"]          # who may grade; left out: anybody

[[criterion]]
id = "discussion"
title = "Discussion of the results"
points = 6
start = "full"                    # comments deduct from all points; "zero": they add to none
lab = 1                           # whose report it is about; left out: all of the submission
about = "Are the numbers explained by what the GPU does?"
[[criterion.level]]               # optional: what so many points stand for; the page gives them with one click
points = 6
text = "Each number is explained."
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

from gradebook.command_name import command
from gradebook.grading.manual_grading import FOLDER, ManualGradingError
from gradebox.common import reading

FILE = "rubric.toml"
PREFIX = "manual."
"""Before a criterion's id, where criteria of checks are next to it."""
_ID = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MOST = 1000
_TEMPLATE = """# What people grade of this class. `{command} manual grade FOLDER --as NAME` opens the page.
title = "Report"
released = false                  # true: students' feedback and the exports have these points
blind = false                     # true: the page shows no names
# graders = ["Ana", "Ben"]        # who may grade; left out: anybody

[[criterion]]
id = "discussion"
title = "Discussion of the results"
points = 6
start = "full"                    # comments deduct; "zero": they add
# lab = 1                         # whose report it is about; left out: all of the submission
about = "Are the numbers explained, and not only listed?"

[[criterion]]
id = "figures"
title = "Figures"
points = 4
about = "Axes, units, and a caption that says what is to be seen."
"""


@dataclass(frozen=True)
class Level:
    """What work looks like that gets so many points of a criterion."""

    points: Decimal
    text: str


@dataclass(frozen=True)
class Criterion:
    """One thing that people judge."""

    id: str
    title: str
    points: Decimal
    start: Literal["full", "zero"] = "full"
    lab: int | None = None
    about: str = ""
    level: tuple[Level, ...] = ()


@dataclass(frozen=True)
class Rubric:
    """What is graded by hand in one class."""

    criterion: tuple[Criterion, ...]
    title: str = "By hand"
    released: bool = False
    blind: bool = False
    graders: tuple[str, ...] = ()

    @property
    def points(self) -> Decimal:
        return sum((criterion.points for criterion in self.criterion), Decimal(0))

    def find(self, name: str) -> Criterion:
        """The criterion of this id.

        Raises:
            ManualGradingError: there is none.
        """
        criterion = next((criterion for criterion in self.criterion if criterion.id == name.removeprefix(PREFIX)), None)
        if criterion is None:
            known = ", ".join(criterion.id for criterion in self.criterion)
            raise ManualGradingError(f"there is no criterion {name!r} that is graded by hand; there are {known}")
        return criterion

    def without(self, labs: Mapping[int, str]) -> tuple[Criterion, ...]:
        """The criteria that are not about one of these labs."""
        return tuple(criterion for criterion in self.criterion if criterion.lab not in labs)


def load(folder: Path) -> Rubric | None:
    """The rubric of the class in `folder`; None where nothing is graded by hand.

    Raises:
        ManualGradingError: it cannot be used.
    """
    path = folder / FOLDER / FILE
    if not path.exists():
        return None
    try:
        document = reading.toml(path)
        rubric = reading.into(Rubric, document)
        check(document, rubric)
    except reading.ReadingError as error:
        raise ManualGradingError(str(error)) from None
    return rubric


def write_template(folder: Path) -> Path:
    """Write a rubric to begin with.

    Raises:
        ManualGradingError: there is one.
    """
    path = folder / FOLDER / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_TEMPLATE.format(command=command()))
    except FileExistsError:
        raise ManualGradingError(f"{path} is there already; change it") from None
    return path


def check(document: reading.Document, rubric: Rubric) -> None:
    """Raise ReadingError for what types do not say."""
    if not rubric.criterion:
        raise document.error((), "there is no [[criterion]]; a rubric has at least one")
    visited: set[str] = set()
    for number, criterion in enumerate(rubric.criterion):
        place = ("criterion", number)
        if not _ID.fullmatch(criterion.id):
            raise document.error(
                (*place, "id"), f"id = {criterion.id!r}: small letters, digits and _, like 'discussion'"
            )
        if criterion.id in visited:
            raise document.error((*place, "id"), f"{criterion.id} stands twice; keep one")
        visited.add(criterion.id)
        if not criterion.title.strip():
            raise document.error((*place, "title"), "title is empty")
        if not 0 < criterion.points <= _MOST:
            raise document.error((*place, "points"), f"points = {criterion.points}: more than 0 and at most {_MOST}")
        for level in criterion.level:
            if not 0 <= level.points <= criterion.points:
                text = f"{criterion.id} has a level of {level.points} points: at least 0 and at most {criterion.points}"
                raise document.error((*place, "id"), text)
            if not level.text.strip():
                raise document.error((*place, "id"), f"{criterion.id} has a level without a text")
    if any(not name.strip() for name in rubric.graders):
        raise document.error(("graders",), "graders has an empty name")
