"""Rows of a roster that spreadsheets have changed, or that are about nobody in the class any more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradebook.intake import doubtful_rows, strangers
from gradebook.intake.roster_files import load
from gradebook.roster import KEYS, Roster, RosterError
from tests.gradebook.conftest import SmallClass

UNSEEN = {"two spaces": "  ", "no-break space": "\u00a0", "zero width": " \u200b", "mark": " \ufeff", "tab": "\t"}


def roster(folder: Path, text: str, teams: str = "") -> Roster:
    (folder / "roster.csv").write_text(text, encoding="utf-8")
    if teams:
        (folder / "teams.csv").write_text(teams, encoding="utf-8")
    return load(folder / "roster.csv", folder / "teams.csv" if teams else None)


@pytest.mark.parametrize("space", UNSEEN.values(), ids=list(UNSEEN))
def test_spaces_that_nobody_sees_make_no_other_person_and_no_other_team(space: str, tmp_path: Path) -> None:
    people = roster(tmp_path, f"student,name,team\nada l,Ada Lovelace,Team 1\nbob,Bob Ross,Team{space}1\n")
    odd = [text.replace(" ", space) for text in ("ada l", "Ada Lovelace", "Team 1")]
    for handle in odd:
        assert [entry.student for entry in people.owners([handle])] == ["ada l", "bob"]
    assert {entry.team for entry in people.entries} == {"Team 1"}, "marks by hand are kept under the team's name"
    listed = f"student,team\n{odd[0]},{odd[2]}\nada l,Team 1\nbob,Team 1\n"
    people = roster(tmp_path, "student,name\nada l,Ada Lovelace\nbob,Bob Ross\n", listed)
    assert [entry.team for entry in people.entries] == [odd[2].replace("\ufeff", "")] * 2


@pytest.mark.parametrize("mark", ["\u200f", "\u200e", "\u202b", "\u2068", "\u200b"])
def test_marks_of_direction_are_no_part_of_a_name(mark: str, tmp_path: Path) -> None:
    people = roster(tmp_path, f"student,name\n{mark}s6,{mark}\u05e9\u05e8\u05d4{mark} \u05db\u05d4\u05df\n")
    assert [(entry.student, entry.name) for entry in people.entries] == [
        ("s6", "\u05e9\u05e8\u05d4 \u05db\u05d4\u05df")
    ]
    people = roster(tmp_path, "student,name\ns7,\u0646\u06cc\u200c\u0646\u0627\n")
    assert people.entries[0].name == "\u0646\u06cc\u200c\u0646\u0627", "a joiner is spelling"


def test_who_may_be_canvas_s_test_student_is_named(tmp_path: Path) -> None:
    rows = 'Student,ID,SIS User ID,SIS Login ID,Section\n"Lovelace, Ada",101,S1,ada,A\n"Student, Test",999,{},tst,A\n'
    (said,) = doubtful_rows.notices(roster(tmp_path, rows.format("")))
    assert (
        "login of a person: tst (Student, Test). A submission counts; without one there is no 0. Remove the row" in said
    )
    assert doubtful_rows.notices(roster(tmp_path, rows.format("S9"))) == ()


@pytest.mark.parametrize("title", ["Student ID", "SIS User ID", "ID number", "SID"])
def test_a_number_that_a_spreadsheet_has_shortened_is_refused(title: str, tmp_path: Path) -> None:
    assert title in KEYS
    with pytest.raises(RosterError, match=rf"line 3: {title} is 9.91214E\+11, a number that a spreadsheet has short"):
        roster(tmp_path, f"Email,{title}\nada@uni.example,12\nbob@uni.example,9.91214E+11\n")
    roster(tmp_path, f"Email,{title}\nada@uni.example,1e5b\nbob@uni.example,12E\n")


def test_of_other_tables_such_a_number_is_explained(tmp_path: Path) -> None:
    people = roster(tmp_path, "student\nada\n")
    assert "A spreadsheet has shortened a number" in strangers.why(people, ["9,91E+11"])


def test_a_row_that_sums_up_others_is_no_student(tmp_path: Path, small_class: SmallClass) -> None:
    people = roster(tmp_path, "student,name,score\nada,Ada,1\nAverage,,2\n,Total,4\nsum,Sum Young,3\n")
    assert [entry.student for entry in people.entries] == ["ada", "sum"]
    assert [outsider.why for outsider in people.outsiders] == [
        "'Average' in roster.csv sums up other rows",
        "'Total' in roster.csv sums up other rows",
    ]
    canvas = "Student,ID,SIS Login ID\n    Points Possible,,\nAda,1,ada\n"
    assert [entry.student for entry in roster(tmp_path, canvas).entries] == ["ada"]
    small_class.hands_in("ada")
    (tmp_path / "roster.csv").write_text("student,name,score\nada,Ada,1\nAverage,,2\n")
    assert [row.student for row in small_class.grade(roster=tmp_path / "roster.csv").students] == ["ada"]


@pytest.mark.parametrize(
    ("title", "cell"),
    [
        ("Status", "Suspended"),
        ("enrollment_state", "inactive"),
        ("Enrolment Status", "Withdrawn"),
        ("Status", "gesperrt"),
    ],
)
def test_who_has_left_by_the_rosters_own_word_is_named(title: str, cell: str, tmp_path: Path) -> None:
    people = roster(tmp_path, f"student,{title}\nada,Active\nbob,{cell}\n")
    assert f"bob ({title}: {cell}). Remove their rows" in doubtful_rows.left(people.entries)


def test_words_of_other_columns_and_of_submissions_say_nothing_of_the_kind(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,Status,Section\nada,Submitted for grading,Completed\nbob,Active,dropped\n")
    assert doubtful_rows.left(people.entries) == ""


def test_each_of_several_addresses_in_a_cell_identifies(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,Email\nada,ada@a.example; ada@b.example\nbob,bob@a.example\n")
    for handle in ("ada@a.example", "Ada@b.example", "ada@a.example; ada@b.example"):
        assert [entry.student for entry in people.owners([handle])] == ["ada"]


def test_whole_numbers_with_decimals_and_names_in_another_encoding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match=r"line 2: ID is 101.0, a number to which a program has added decimals"):
        roster(tmp_path, "Student,ID,SIS Login ID\nAda,101.0,ada\n")
    wrong = "Zoë".encode().decode("cp1252")
    with pytest.raises(RosterError, match=r"line 2: student is 'ZoÃ«', which was 'Zoë'"):
        roster(tmp_path, f"student,name\n{wrong},Zoe\n")
    entries = roster(tmp_path, f"student,name\nz1,{wrong}\nz2,Bob\n").entries
    assert "z1 (name: 'ZoÃ«', which was 'Zoë')" in doubtful_rows.damaged_names(entries)
    entries = roster(tmp_path, "student,name\nz1,Zoë MÃ¼ller\n").entries
    assert "z1 (name: 'Zoë MÃ¼ller', which was 'Zoë Müller')" in doubtful_rows.damaged_names(entries)
    roster(tmp_path, "student,name\nz1,Zoë Müller\nz2,José Ñandú\nz3,王芳\nz4,Ängström Çelik\n")


def test_an_export_of_another_class_brings_no_times(small_class: SmallClass, tmp_path: Path) -> None:
    """Its `submitted_at` is when work of that class was handed in."""
    small_class.hands_in("ada")
    file = tmp_path / "roster.csv"
    file.write_text("student,name,submitted_at\nada,Ada,2026-03-01T12:00+00:00\n")
    assert small_class.grade(roster=file).students[0].submitted_at is not None
    people = load(small_class.out / "exports" / "grades.csv")
    assert [(entry.student, entry.name, entry.submitted_at) for entry in people.entries] == [("ada", "Ada", None)]


def test_who_is_staff_in_another_row_is_named(tmp_path: Path) -> None:
    head = "username,email,role\nada,a@x.edu,student\nbob,b@x.edu,instructor\n"
    assert doubtful_rows.staff_too(roster(tmp_path, head)) == ""
    said = doubtful_rows.staff_too(roster(tmp_path, head + "bob,b@x.edu,student\n"))
    assert said == "the roster has these as staff and as students, and they are graded as students: bob"


@pytest.mark.parametrize("cell", ["-", "--", "N/A", "#n/a", "?", " "])
def test_what_stands_for_a_missing_identifier_or_time_is_none(tmp_path: Path, cell: str) -> None:
    people = roster(
        tmp_path,
        "github_username,email,submitted_at\nada-l,a@x.edu,2026-03-01T12:00Z\n"
        f"{cell},b@x.edu,{cell}\n{cell},c@x.edu,\nna,d@x.edu,\n",
    )
    assert [entry.student for entry in people.entries] == ["ada-l", "b@x.edu", "c@x.edu", "na"]
    assert [entry.submitted_at is None for entry in people.entries] == [False, True, True, True]
    assert [entry.columns["github_username"].strip() for entry in people.entries][1:3] == [cell.strip()] * 2


def test_who_may_be_canvas_s_test_student_has_no_0(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    path = small_class.submissions.parent / "roster.csv"
    head = "Student,ID,SIS User ID,SIS Login ID\n"
    path.write_text(f'{head}"Lovelace, Ada",101,S1,ada\n"Student, Test",999,,tst\n')
    scores = {row.student: row.score for row in small_class.grade(roster=path).students}
    assert (scores["tst"], scores["ada"] is None) == (None, False)


def test_a_count_below_the_names_is_nobody(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,name,Email\nada,Ada Lovelace,a@x.edu\nTotal,2,\n")
    assert [entry.student for entry in people.entries] == ["ada"]
    assert [outsider.why for outsider in people.outsiders] == ["'Total' in roster.csv sums up other rows"]


def test_a_name_in_two_lines_is_one_name(tmp_path: Path) -> None:
    people = roster(tmp_path, 'student,name\nada,"Ada\nLovelace"\n')
    assert people.entries[0].name == "Ada Lovelace"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("role\nprof,Instructor\nada,\n", "says of nobody 'student': prof (role: Instructor). If they are staff"),
        ("role\nprof,Instructor\nada,Student\n", ""),
        ("role\nprof,navigator\nada,driver\n", ""),
        ("Email\nkey,address\nada,a@x.edu\n", "addresses is none: key (Email: address). Correct it; remove the row"),
        ("Email\nkey,-\nada,a@x.edu\n", ""),
    ],
)
def test_rows_that_may_be_no_student_s_are_named(rows: str, said: str, tmp_path: Path) -> None:
    notices = doubtful_rows.notices(roster(tmp_path, f"student,{rows}"))
    assert [said in text for text in notices] == [True] * bool(said)


def test_of_an_anonymous_download_of_canvas_the_way_out_is_named(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,name\nada,Ada Lovelace\n")
    assert "switch off Anonymous Grading there" in strangers.of_submissions(people, ["anon_Xy7Zq", "anon_abc"])
    assert "Anonymous" not in strangers.of_submissions(people, ["anon_Xy7Zq", "anonymous_bob"])


def test_an_address_with_a_tag_is_named_next_to_the_one_without(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,Email\nbob,Bob@x.edu\neve,eve+gpu@x.edu\n")
    said = strangers.of_submissions(people, ["bob+gpu@x.edu"])
    assert said == ". bob+gpu@x.edu may be Bob@x.edu with a tag behind the +: write the same address in both places"
    assert [entry.student for entry in people.owners(["eve+gpu@x.edu"])] == ["eve"]
    assert "with a tag" not in strangers.of_submissions(people, ["zoe+gpu@x.edu"])


def test_where_nobody_has_a_name_the_columns_that_nothing_reads_are_named(tmp_path: Path) -> None:
    people = roster(tmp_path, "Matrikelnummer,Nachname,Vorname,E-Mail\n101,Lovelace,Ada,ada@x.edu\n")
    said = strangers.of_submissions(people, ["Ada Lovelace"])
    assert "calls no column name, or First name and Last name, only Matrikelnummer, Nachname, Vorname: call" in said
    for text in ("student,name,Ort\n101,Ada Lovelace,Wien\n", "student,team\n101,a\n"):
        assert "has a name" not in strangers.of_submissions(roster(tmp_path, text), ["Bob"])


def test_who_has_the_number_of_two_has_lost_no_zeros(tmp_path: Path) -> None:
    assert not strangers.lost_zeros(roster(tmp_path, "student,ID\nada,1001\n1001,5\n"), ["1001"])


@pytest.mark.parametrize(
    ("name", "lost"),
    [("Zo? M?ller", "?"), ("M?ller", "?"), ("Zo\ufffd", "\ufffd"), ("Zo&euml;", "&euml;"), ("O&#39;Neil", "&#39;")],
)
def test_a_name_that_has_lost_letters_is_named_and_a_key_is_refused(name: str, lost: str, tmp_path: Path) -> None:
    """A name is for people: the work of who has one is found by the key, and the rest of the class is graded."""
    entries = roster(tmp_path, f"student,name\nada,Ada Lovelace\nzoe,{name}\n").entries
    said = doubtful_rows.damaged_names(entries)
    assert f"zoe (name: {name!r})" in said
    assert "ada" not in said
    assert doubtful_rows.damaged_names(entries[:1]) == ""
    with pytest.raises(RosterError, match=rf"line 2: student is .*{re.escape(repr(lost))} stands for a letter"):
        roster(tmp_path, f"student\n{name}\n")


@pytest.mark.parametrize("name", ["Bob (?)", "Bob?", "A & B; C", "Tom &Jerry", "? Ross"])
def test_other_signs_in_a_name_are_its_own(name: str, tmp_path: Path) -> None:
    file = tmp_path / "roster.csv"
    file.write_text(f'student,name\nbob,"{name}"\n\x1a')
    assert [entry.name for entry in load(file).entries] == [name]
