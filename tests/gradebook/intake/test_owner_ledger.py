"""A ledger of whose a submission is: in any class, on any platform, everybody gets what they handed in, or nobody does
and the instructor is told.

Classes are drawn at random, with what classes have: people of one name, names with accents, numbers for logins,
addresses that two share, logins that end alike, teams called by a number or with one member. Files are named as
`ContentZipper` in Canvas's `lib/content_zipper.rb`, Moodle's `mod/assign/classes/downloader.php`, Gradescope's export
and Classroom 50 name them.
"""

from __future__ import annotations

import csv
import io
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gradebook.intake import roster_files
from gradebook.intake.collect import Intake, Store
from gradebook.intake.lab_folders import LabNames
from gradebook.results import Student
from gradebook.roster import Roster, RosterError
from gradebook.settings import Settings
from tests.gradebook.intake.downloads import LAB

FIRST = (
    "Ada",
    "Bob",
    "Zoë",
    "José",
    "Anne-Marie",
    "李",
    "Óscar",
    "D'Arcy",
    "Łukasz",
    "Mary Jane",
    "N.",
    "Jean_Luc",
    "de",
)
LAST = ("Lovelace", "Ross", "Müller", "García López", "van der Berg", "小龙", "O'Neil", "Østergård", "Smith",
        "Smith-Jones", "3rd", "Ng", "Ada", "Straße", "Test")  # fmt: skip
LOGINS = ("ada", "ada2", "ada-l", "l", "love", "ross", "bob_r", "zoe.m", "a1", "17", "23", "user-17", "berg", "x-berg",
          "lab1", "mueller", "ng", "gpu", "submission", "smith", "j-smith", "jones", "smith-jones")  # fmt: skip
TEAMS = ("Team 1", "Team 2", "Group_3", "17", "ada")
FILES = ("benchmark.py", "lab_1_2.py", "my_17_3_x.py")
PLATFORMS = ("Canvas", "Moodle", "Moodle's participants", "Gradescope", "Classroom 50", "own keys", "own names")


@dataclass(frozen=True)
class Person:
    number: str
    login: str
    first: str
    last: str
    sis: str
    shared: str = ""
    """An address that another student has as well."""

    @property
    def name(self) -> str:
        return f"{self.first} {self.last}"

    @property
    def email(self) -> str:
        return self.shared or f"{self.login}@example.edu"


class Class:
    """A class at random, and what it hands in: by team, or by login, with its name for a content."""

    def __init__(self, seed: int, platform: str) -> None:
        self.random = random.Random(f"{seed} {platform}")
        self.platform = platform
        count = self.random.randint(3, 9)
        numbers, logins = self.random.sample(range(1, 60), count), self.random.sample(LOGINS, count)
        self.people = [
            Person(str(number), login, self.random.choice(FIRST), self.random.choice(LAST), f"S{number}-{login}")
            for number, login in zip(numbers, logins, strict=True)
        ]
        if self.random.random() < 0.3 and platform in ("Gradescope", "own keys"):  # whose key is not the address
            self.people[:2] = [replace(person, shared="family@example.edu") for person in self.people[:2]]
        called = self.random.sample(TEAMS, 2) if self.random.random() < 0.4 else ()
        self.teams = {
            person: self.random.choice(called) for person in self.people if called and self.random.random() < 0.6
        }
        self.units: dict[str, list[Person]] = {}
        for person in self.people:
            self.units.setdefault(self.teams.get(person, f"{person.login} alone"), []).append(person)
        self.handed = [unit for unit in self.units if self.random.random() < 0.8] or list(self.units)[:1]

    def team(self, person: Person) -> str:
        return self.teams.get(person, "")

    def unit_of(self, person: Person) -> str:
        return next(unit for unit, members in self.units.items() if person in members)

    # --- files ------------------------------------------------------------------------------------------------------

    def hand_in(self, source: Path) -> None:
        for number, unit in enumerate(self.handed, start=9000):
            person = self.random.choice(self.units[unit])
            is_team = unit in self.teams.values()
            match self.platform:
                case "Canvas":
                    name = canvas_name(unit if is_team else f"{person.last}, {person.first}")
                    late = "_LATE" if self.random.random() < 0.3 else ""
                    file = f"{name}{late}_{person.number}_{number}_{self.random.choice(FILES)}"
                    (source / file).write_text(f"# {unit}\n")
                case "Moodle" | "Moodle's participants":
                    # A group's has its name alone, or before that of the member who handed in.
                    with_name = self.random.random() < 0.5
                    name = f"{unit}-{person.name}" if is_team and with_name else unit if is_team else person.name
                    name = name.replace("_", " ")
                    identifier = str(self.random.randint(1, 60)) if is_team and not with_name else person.number
                    self._folder(source / f"{name}_{identifier}_assignsubmission_file", unit)
                case "Gradescope":
                    self._folder(source / f"submission_{number}", unit)
                    with (source / "submission_metadata.yml").open("a") as export:
                        export.write(f"submission_{number}:\n  :submitters:\n")
                        for member in self.units[unit]:
                            export.write(
                                f'  - :name: "{member.name}"\n    :sid: {member.sis}\n    :email: {member.email}\n'
                            )
                        export.write("  :created_at: 2026-03-01 20:00:00 Z\n")
                case "Classroom 50":
                    self._folder(source / f"cs101-lab-{person.login}", unit)
                case "own keys":
                    free = not (source / person.email).exists()
                    self._folder(source / (person.email if free and self.random.random() < 0.5 else person.login), unit)
                case _:
                    again = number if (source / person.name).exists() else ""
                    self._folder(source / f"{person.name}{again}", unit)

    def _folder(self, path: Path, unit: str) -> None:
        (path / LAB).mkdir(parents=True)
        (path / LAB / "benchmark.py").write_text(f"# {unit}\n")

    # --- lists ------------------------------------------------------------------------------------------------------

    def roster(self, folder: Path) -> Roster:
        rows: list[list[str]]
        groups: list[list[str]] = []
        match self.platform:
            case "Canvas":
                rows = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "GPU lab (4711)"]]
                rows += [["    Points Possible", "", "", "", "", "20"]]
                rows += [[f"{p.last}, {p.first}", p.number, p.sis, p.login, "A", ""] for p in self.people]
                groups = [["name", "canvas_user_id", "user_id", "login_id", "sections", "group_name"]]
                groups += [[p.name, p.number, p.sis, p.login, "A", self.team(p)] for p in self.people]
            case "Moodle":
                rows = [["Identifier", "Full name", "Email address", "Status", "Grade"]]
                rows += [[f"Participant {p.number}", p.name, p.email, "", ""] for p in self.people]
                groups = [["First name", "Last name", "Email address", "Groups"]]
                groups += [[p.first, p.last, p.email, self.team(p)] for p in self.people]
            case "Moodle's participants":
                rows = [["First name", "Last name", "Email address", "Groups"]]
                rows += [[p.first, p.last, p.email, self.team(p)] for p in self.people]
                groups = rows
            case "Gradescope":
                rows = [["Name", "SID", "Email"], *([p.name, p.sis, p.email] for p in self.people)]
            case "Classroom 50":
                rows = [["username", "first_name", "last_name", "email", "section", "github_id", "team"]]
                rows += [[p.login, p.first, p.last, p.email, "", p.number, self.team(p)] for p in self.people]
            case _:
                rows = [["student", "Email", "name", "team"]]
                rows += [[p.login, p.email, p.name, self.team(p)] for p in self.people]
        (folder / "roster.csv").write_text(csv_of(rows))
        if groups and self.teams:
            (folder / "groups.csv").write_text(csv_of(groups))
            return roster_files.load(folder / "roster.csv", folder / "groups.csv")
        return roster_files.load(folder / "roster.csv")


def canvas_name(name: str) -> str:
    """`sanitize_user_name` and `sanitize_file_name`."""
    return re.sub(r"[^\w]", "", re.sub(r"_(\d+)_", r"\1", name).lower())


def csv_of(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def of(person: Person, students: Mapping[str, Student]) -> Student:
    own = {person.login, person.sis} if person.shared else {person.email, person.sis}
    return next(student for student in students.values() if own & {*student.columns.values()})


def roster_of(course: Class, folder: Path) -> Roster | None:
    """None where a team is called as somebody is who is not in it."""
    names = {name for person in course.people for name in (person.login, person.number)}
    if not names & {*course.teams.values()}:
        return course.roster(folder)
    try:
        return course.roster(folder)
    except RosterError as error:
        return None if "is called as the student" in str(error) else pytest.fail(str(error))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_everybody_gets_what_they_handed_in_or_nobody_does(
    platform: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    begin = int(pytestconfig.getoption("seed")) * 100
    right = 0
    for seed in range(begin, begin + 40):
        course = Class(seed, platform)
        folder, source = tmp_path / str(seed), tmp_path / str(seed) / "source"
        source.mkdir(parents=True)
        course.hand_in(source)
        roster = roster_of(course, folder)
        if roster is None:
            continue
        store = Store(folder / "store")
        intake = Intake(Settings(), roster, store, folder / "room", None, LabNames((LAB,), LAB))
        students = {student.student: student for student in intake.take_all(source, lambda name: None)}
        for person in course.people:
            student = of(person, students)
            files = sorted((store.path(student.content) / LAB).iterdir()) if student.content else []
            has = files[0].read_text()[2:-1] if files else None
            unit = course.unit_of(person)
            where = f"seed {seed}: {person} has {has!r}, {student.reason!r}; {intake.notices}"
            if has is not None:
                assert unit in course.handed, where
                assert has == unit, where
                right += 1
            elif unit in course.handed:
                # What two students share says nothing: a name, or an address.
                shared = [handle for p in course.people for handle in (p.name, p.email)]
                assert any(shared.count(h) > 1 for p in course.units[unit] for h in (p.name, p.email)), where
                assert any("nobody's: rename" in notice for notice in intake.notices), where
    assert right > 100
