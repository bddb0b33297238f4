"""Histories: whatever becomes of logins, the roster and submissions, each student has what a plain model says.

The model knows students by who they are, and adds points; the class knows them by rosters, folders and files.
"""

from __future__ import annotations

import csv
import io
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pytest

import grader
from gradebook.export.book import Book
from tests.gradebook.conftest import SmallClass

CRITERIA = [criterion.id for lab in grader.course().rubric.select((1,)) for criterion in lab.criteria]
STEPS = 12


@dataclass
class Person:
    """A student as the model has them."""

    number: int
    login: str
    text: str = ""
    """Of what was handed in; empty for nothing."""
    there: bool = True
    """Whether the roster has them, and the folder what they handed in."""
    excused: bool = False
    overrides: dict[str, Decimal] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"Last{self.number}, First{self.number}"

    @property
    def row(self) -> str:
        return f'"{self.name}",{100 + self.number},S{self.number},{self.login},A\n'


class History:
    """A class, and what happens to it."""

    def __init__(self, small: SmallClass, draw: random.Random) -> None:
        self.small, self.draw = small, draw
        self.people = [Person(number, f"login{number}") for number in range(5)]
        self.checks: dict[str, dict[str, Decimal]] = {}
        """What the checks gave for a text, as the first table says that has nothing but them."""

    def step(self, number: int) -> tuple[str, ...]:
        """Let something happen; what `--regrade` names."""
        person = self.draw.choice(self.people)
        what = self.draw.choice(("login", "leaves", "comes back", "hands in", "override", "excuse", "regrade"))
        if what == "login" and person.there:
            folder, person.login = self.folder(person), f"login{person.number}-{number}"
            if person.text:
                folder.rename(self.folder(person))
        elif what == "leaves" and sum(other.there for other in self.people) > 2 and person.there:
            person.there = False
            if person.text:
                self.folder(person).rename(self.small.submissions.parent / f"of-{person.number}")
        elif what == "comes back" and not person.there:
            person.there = True
            if person.text:
                (self.small.submissions.parent / f"of-{person.number}").rename(self.folder(person))
        elif what == "hands in" and person.there:
            person.text = self.draw.choice("abc")
            self.small.hands_in(person.login, person.text)
        elif what == "override" and person.there:
            criterion, points = self.draw.choice(CRITERIA), self.draw.choice(("0", "1", "2.5"))
            called = self.draw.choice((person.name, f"S{person.number}", str(100 + person.number)))
            Book.open(self.small.out).override(called, criterion, points, "looked")
            person.overrides[criterion] = Decimal(points)
        elif what == "excuse" and person.there:
            Book.open(self.small.out).excuse(person.name, "all", "ill")
            person.excused = True
        return (f"S{person.number}",) if what == "regrade" and person.there else ()

    def folder(self, person: Person) -> Path:
        return self.small.submissions / person.login

    def grade(self, regrade: tuple[str, ...]) -> list[dict[str, str]]:
        roster = self.small.submissions.parent / "roster.csv"
        rows = "".join(person.row for person in self.people if person.there)
        roster.write_text(f"Student,ID,SIS User ID,SIS Login ID,Section\n{rows}")
        self.small.grade(roster=roster, regrade=regrade)
        text = (self.small.out / "exports" / "grades.csv").read_text("utf-8-sig")
        return list(csv.DictReader(io.StringIO(text, newline="")))

    def expected(self, person: Person) -> tuple[str, Decimal | None]:
        if person.excused:
            return "excused", None
        checks = self.checks[person.text] if person.text else dict.fromkeys(CRITERIA, Decimal(0))
        status = "graded" if person.text else "missing"
        return status, sum((person.overrides.get(name, points) for name, points in checks.items()), Decimal(0))


@pytest.mark.night
@pytest.mark.parametrize("part", range(4))
def test_every_student_has_what_the_model_says(small_class: SmallClass, part: int, pytestconfig: pytest.Config) -> None:
    history = History(small_class, random.Random(f"{pytestconfig.getoption('seed')} {part}"))
    for person, text in zip(history.people, "abc", strict=False):
        person.text = text
        small_class.hands_in(person.login, text)
    for row, text in zip(history.grade(()), "abc", strict=False):
        history.checks[text] = {name: Decimal(row[name]) for name in CRITERIA}
    for number in range(STEPS):
        rows = {row["name"]: row for row in history.grade(history.step(number))}
        assert sorted(rows) == sorted(person.name for person in history.people if person.there)
        for person in history.people:
            if person.there:
                row = rows[person.name]
                status, score = row["status"], Decimal(row["score"]) if row["score"] else None
                assert (status, score) == history.expected(person), (number, person)
        canvas = csv.reader((small_class.out / "exports" / "canvas.csv").read_text().splitlines()[2:])
        assert {row[0]: row[-1] for row in canvas} == {
            name: "EX" if row["status"] == "excused" else row["score"] for name, row in rows.items()
        }
