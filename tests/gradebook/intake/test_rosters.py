"""Rosters of classrooms on GitHub: who is in the class, and whose a repository is by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradebook.intake.roster import Roster, load

CLASSROOM_50 = """username,first_name,last_name,email,section,github_id,role
ada-l,Ada,Lovelace,ada@example.edu,A,1,student
l,Liz,,,A,2,
,Bob,Babbage,bob@example.edu,A,,student
teacher,Grace,Hopper,grace@example.edu,,4,teacher
helper,,,,,5,ta
"""
GITHUB_CLASSROOM = """"identifier","github_username","github_id","name"
"Lovelace, Ada","ada-l","1","Ada Lovelace"
"Babbage, Bob","","",""
"""


def roster(folder: Path, text: str) -> Roster:
    (folder / "roster.csv").write_text(text)
    return load(folder / "roster.csv")


def test_classroom_50s_roster_has_students_and_no_staff(tmp_path: Path) -> None:
    found = roster(tmp_path, CLASSROOM_50)
    assert [(one.student, one.name) for one in found.entries] == [
        ("ada-l", "Ada Lovelace"), ("l", ""), ("bob@example.edu", "Bob Babbage"),
    ]  # fmt: skip


def test_its_older_file_without_roles_is_read_as_well(tmp_path: Path) -> None:
    lines = (line.rpartition(",")[0] + "\n" for line in CLASSROOM_50.splitlines())
    assert len(roster(tmp_path, "".join(lines)).entries) == 5


def test_github_classrooms_roster_keeps_who_never_linked_an_account(tmp_path: Path) -> None:
    found = roster(tmp_path, GITHUB_CLASSROOM)
    assert [(one.student, one.name) for one in found.entries] == [("ada-l", "Ada Lovelace"), ("Babbage, Bob", "")]


@pytest.mark.parametrize(
    ("repository", "login"),
    [("gpu-lab1-Ada-L", "ada-l"), ("gpu-lab1-l", "l"), ("ada-l", "ada-l"), ("gpu-lab1-eve", None), ("gpul", None)],
)
def test_a_repository_is_whose_login_ends_its_name(tmp_path: Path, repository: str, login: str | None) -> None:
    found = roster(tmp_path, CLASSROOM_50)
    entry = found.find([repository])
    assert (entry and entry.student) == login
    assert found.identifies([repository]) == (login is not None)


def test_an_identifier_goes_before_the_end_of_a_name(tmp_path: Path) -> None:
    found = roster(tmp_path, "student,username\nx-ada,eve\nbob,ada\n")
    entry = found.find(["x-ada"])
    assert entry is not None
    assert entry.student == "x-ada"
