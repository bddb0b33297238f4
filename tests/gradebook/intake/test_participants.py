"""Moodle's list of participants as the roster and as the list of teams: names say whose a folder is."""

from __future__ import annotations

import pytest

from tests.gradebook.intake.downloads import LAB, Downloads

PARTICIPANTS = """First name,Last name,Email address,Groups
Anna,Schmidt,anna@example.edu,Team E
Linus,Ågård,linus@example.edu,Team E
Kim,Lee,kim@example.edu,No groups
Alan,Turing,alan@example.edu,Keine Gruppen
"""


def test_in_a_team_one_folder_may_have_a_key_and_another_a_name(downloads: Downloads) -> None:
    """Only what the same student handed in is set apart, if it has their name alone."""
    downloads.put(f"anna@example.edu/{LAB}/benchmark.py", b"1\n")
    downloads.put(f"Linus Ågård_108_assignsubmission_file/{LAB}/benchmark.py", b"2\n")
    students = downloads.take(roster=PARTICIPANTS, teams=True)
    assert set(students) == {"anna@example.edu", "linus@example.edu", "kim@example.edu", "alan@example.edu"}
    assert "handed in more than once, and not the same" in students["linus@example.edu"].reason


def test_who_is_in_no_group_of_moodle_is_in_no_team(downloads: Downloads) -> None:
    downloads.put(f"Alan Turing_7_assignsubmission_file/{LAB}/benchmark.py")
    students = downloads.take(roster=PARTICIPANTS, teams=True)
    assert (students["alan@example.edu"].status, students["kim@example.edu"].status) == ("taken", "missing")
    assert (students["alan@example.edu"].team, students["anna@example.edu"].team) == ("", "Team E")


@pytest.mark.parametrize("group", ["Team E", "Team-E"])
def test_a_name_of_moodle_may_stand_behind_that_of_the_group(downloads: Downloads, group: str) -> None:
    downloads.put(f"{group}-Linus Ågård_108_assignsubmission_file/{LAB}/benchmark.py")
    downloads.put(f"Default group-Kim Lee_109_assignsubmission_file/{LAB}/benchmark.py", b"2\n")
    students = downloads.take(roster=PARTICIPANTS.replace("Team E", group), teams=True)
    assert [key for key, student in students.items() if student.status == "missing"] == ["alan@example.edu"]
    assert len(students) == 4
    assert students["anna@example.edu"].content == students["linus@example.edu"].content


def test_a_column_of_groups_that_nothing_reads_is_said(downloads: Downloads) -> None:
    downloads.put(f"Kim Lee_7_assignsubmission_file/{LAB}/benchmark.py")
    downloads.take(roster=PARTICIPANTS)
    assert "the roster has a column 'Groups', which nothing here reads" in downloads.intake.notices[0]


def test_a_column_of_groups_in_which_nobody_is_in_one_is_not_spoken_of(downloads: Downloads) -> None:
    downloads.put(f"Kim Lee_7_assignsubmission_file/{LAB}/benchmark.py")
    downloads.take(roster=PARTICIPANTS.replace("Team E", "No groups"))
    assert downloads.intake.notices == []


def test_a_group_that_no_list_names_is_not_the_team_of_whoever_has_its_number(downloads: Downloads) -> None:
    roster = "Identifier,Full name,team\nParticipant 46,Ada,one\nParticipant 47,Bob,one\n"
    downloads.put(f"Team 9_46_assignsubmission_file/{LAB}/benchmark.py")
    students = downloads.take(roster=roster)
    assert {key: student.status for key, student in students.items()} == {
        "Team 9_46": "taken", "Participant 46": "missing", "Participant 47": "missing",
    }  # fmt: skip
    assert "it is taken for a group's, and is nobody's" in downloads.intake.notices[0]


@pytest.mark.parametrize(("word", "in_files"), [("Participant", "Participant"), ("Teilnehmer/in", "Teilnehmerin")])
def test_a_download_for_anonymous_grading_is_theirs_whom_a_later_worksheet_names(
    downloads: Downloads, word: str, in_files: str
) -> None:
    downloads.put(f"{in_files}_46_assignsubmission_file/{LAB}/benchmark.py")
    students = downloads.take(roster=f"Identifier,Full name\n{word} 46,Ada Lovelace\n{word} 47,Bob Ross\n")
    assert {key: student.status for key, student in students.items()} == {
        f"{word} 46": "taken",
        f"{word} 47": "missing",
    }
    assert downloads.intake.notices == []


def test_two_of_one_name_in_a_team_are_that_team_beside_its_own_folder(downloads: Downloads) -> None:
    """Neither is set apart as a stranger's: the team has handed in twice."""
    roster = "student,name,team\na1,Wei Wang,Team 1\na2,Wei Wang,Team 1\n"
    downloads.put(f"Team 1/{LAB}/benchmark.py", b"1\n")
    downloads.put(f"Wei Wang/{LAB}/benchmark.py", b"2\n")
    students = downloads.take(roster=roster)
    assert set(students) == {"a1", "a2"}
    assert "handed in more than once, and not the same" in students["a1"].reason
