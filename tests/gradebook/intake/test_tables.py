"""Tables that are none, and rows that are two students': by every way on which a table comes into a class."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gradebook import column_titles
from gradebook.grading.manual_grading import requests
from gradebook.intake import handed_in, roster_files, team_lists, times
from gradebook.intake.times import TimesError
from gradebook.roster import Roster, RosterError


def packed(*names: str) -> bytes:
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as archive:
        for name in names:
            archive.writestr(name, "<x/>")
    return text.getvalue()


OTHERS = {
    "an Excel workbook": packed("[Content_Types].xml", "xl/workbook.xml"),
    "an OpenDocument table": packed("mimetype", "content.xml"),
    "a Numbers document": packed("Index/Document.iwa"),
    "an old Excel workbook": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512),
    "a PDF document": b"%PDF-1.7\n",
    "a page of the web": b"\r\n<!DOCTYPE html><html><title>Log in</title></html>",
    "a damaged archive": b"PK\x03\x04" + bytes(60),
}
WAYS: dict[str, Callable[[Path], object]] = {
    "roster": roster_files.load,
    "times": lambda path: times.load(path, None, None),
    "teams": lambda path: team_lists.load(path, ("student",), lambda cells: None),
    "list of repositories": handed_in.find,
    "requests": requests.read,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_document_that_is_no_table_is_named_for_what_it_is(way: str, tmp_path: Path) -> None:
    file = tmp_path / "class.csv"
    for kind, data in OTHERS.items():
        file.write_bytes(data)
        with pytest.raises(ValueError, match=f'class.csv is {kind}.*save or download it as "CSV UTF-8'):
            WAYS[way](file)
    for text, message in (("", "is empty"), ("student,text,team,repository,when\n,,,,\n", "no row below its titles")):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            WAYS[way](file)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_could_be_read_in_two_ways_is_refused_with_its_line(way: str, tmp_path: Path) -> None:
    file = tmp_path / "class.csv"
    head = "student,text,team,repository,submitted_at,name"
    file.write_text(f"{head}\nada,a,b,c,2026-03-01T10:00Z,Lovelace, Ada\n")
    with pytest.raises(ValueError, match=r"line 2 has 7 cells, but there are 6 titles: put quotes around"):
        WAYS[way](file)
    file.write_text("GPU computing\nstudent,text\nada,a\n")
    with pytest.raises(
        ValueError, match=r"line 2 has 2 cells, but the first line has only 'GPU computing': it must have"
    ):
        WAYS[way](file)
    file.write_text(f"{head},name\nada,a,b,c,2026-03-01T10:00Z,Ada,\nbob,a,b,c,2026-03-01T10:00Z,Bob,Rob\n")
    with pytest.raises(ValueError, match=r"line 3: two columns are called 'name', one with 'Bob' and one with 'Rob'"):
        WAYS[way](file)


@pytest.mark.parametrize("way", WAYS)
def test_a_quote_that_is_not_closed_takes_no_rows_away(way: str, tmp_path: Path) -> None:
    file, row = tmp_path / "class.csv", "one,https://x.example/a.git,2026-03-01T10:00Z"
    for end in ("", '"'):
        file.write_text(f'student,text,name,team,repository,submitted_at\nada,a,"Ada,{row}\nbob,b,Bob,{row}{end}\n')
        with pytest.raises(ValueError, match=r"line 2: a quote before 'Ada,.*' is not closed in this line"):
            WAYS[way](file)
    file.write_text(f'student,text,name,team,repository,submitted_at\nada,"a,b\n1, 2,\n","Ada ""A"" L",{row}')
    WAYS[way](file)


def test_a_request_may_quote_lines_that_look_like_rows(tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text('student,about,text\nada,all,"see\na,b,c\nx,y,z"\n')
    (request,) = requests.read(tmp_path / "requests.csv")
    assert request.text == "see\na,b,c\nx,y,z"


@pytest.mark.parametrize(
    ("titles", "expected"),
    [
        (("ID", "Name", "Team"), ("ID", "Name", "team")),
        (("STUDENT", "TEAM"), ("student", "team")),
        (("Student", "Name"), ("student", "Name")),
        (("Student", "ID", "Section"), ("Student", "ID", "Section")),
        (("student id", "E-Mail address"), ("Student ID", "Email address")),
        (("Email", "EMAIL"), ("Email", "EMAIL")),
        (("e-mail", "EMAIL"), ("Email", "EMAIL")),
        (("GitHub Username", "Group Name"), ("github_username", "group_name")),
        (("Tea", "Matrikel"), ("Tea", "Matrikel")),
    ],
)
def test_titles_mean_what_they_differ_from_in_case_and_spaces_only(
    titles: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert tuple(column_titles.as_known(titles).values()) == expected


def test_every_table_is_read_with_titles_in_another_case(tmp_path: Path) -> None:
    file, people = tmp_path / "class.csv", tmp_path / "roster.csv"
    people.write_text("Student,Full Name,Submitted At,Team\nada,Ada,2026-03-01T10:00Z,one\nbob,Bob,,ONE\n")
    whole = roster_files.load(people)
    assert [member.student for member in whole.team(["one"])] == ["ada", "bob"]
    assert whole.entries[0].submitted_at is not None
    people.write_text("student,name\nada,Ada\nbob,Bob\n")
    file.write_text("STUDENT,Group Name\nada,one\nbob,one\n")
    assert len(roster_files.load(people, file).team(["one"])) == 2
    file.write_text("Student,Repository\nada,https://x.example/a.git\n")
    assert [listed.key for listed in handed_in.find(file)] == ["ada"]
    file.write_text("Student,Place\nada,https://x.example/a.git\n")
    with pytest.raises(handed_in.IntakeError, match="no column 'repository' in its first line, which"):
        handed_in.find(file)


def test_lists_of_repositories_are_read_as_other_tables_are(tmp_path: Path) -> None:
    file = tmp_path / "class.csv"
    file.write_text("sep=;\nstudent;repository\n\nada;https://x.example/a.git\n;https://x.example/b.git\n")
    with pytest.raises(handed_in.IntakeError, match="line 5: name its student and its repository"):
        handed_in.find(file)
    file.write_text("student,repository,Branch\nada,https://x.example/a.git,final\n")
    with pytest.raises(handed_in.IntakeError, match=r"column 'Branch', which nothing reads: .* call it commit"):
        handed_in.find(file)
    file.write_bytes("student\trepository\nada\thttps://x.example/a.git\n".encode("utf-16"))
    (listed,) = handed_in.find(file)
    assert (listed.key, listed.address) == ("ada", "https://x.example/a.git")


ROSTER = (
    "student,name,Email,username\nada,Ada Lovelace,ada@x.edu,ada-gh\nbob,Bob Ross,bob@x.edu,17\n17,Eve Ng,e@x.edu,e\n"
)


@pytest.fixture
def roster(tmp_path: Path) -> Roster:
    (tmp_path / "roster.csv").write_text(ROSTER)
    return roster_files.load(tmp_path / "roster.csv")


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("student,name", "ada,Bob Ross"),
        ("student,name", '"ada","Ross, Bob"'),
        ("student,Email", "ada,bob@x.edu"),
        ("Email,username", "ada@x.edu,17"),
        ("username,Display name", "ada-gh,Bob Ross"),
    ],
)
def test_a_row_of_two_students_is_nobodys(head: str, row: str, tmp_path: Path, roster: Roster) -> None:
    (tmp_path / "times.csv").write_text(f"{head},submitted_at\n{row},2026-03-01T10:00Z\n")
    with pytest.raises(TimesError, match=r"line 2: .* is '(ada|17)' of the roster, and .* is 'bob'"):
        times.load(tmp_path / "times.csv", roster, None)
    (tmp_path / "teams.csv").write_text(f"{head},team\n{row},one\n")
    if "Display" not in head:
        with pytest.raises(RosterError, match=r"teams.csv, line 2: .* a row is one student's"):
            roster_files.load(tmp_path / "roster.csv", tmp_path / "teams.csv")


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("student,name", "ada,Ada K. Lovelace"),
        ("student,name", "ada,ADA LOVELACE"),
        ("student,Email", "ada,ada@new.edu"),
        ("login_id,user_id,name", '"ada",4711,"Lovelace, Ada"'),
        ("student,repository", "ada,https://github.com/org/lab1-ada-gh.git"),
        ("repository", "git@github.com:org/lab1-ada-gh.git"),
        ("repository", "org/lab1-ada-gh/"),
    ],
)
def test_a_row_may_spell_one_student_otherwise(head: str, row: str, tmp_path: Path, roster: Roster) -> None:
    (tmp_path / "times.csv").write_text(f"{head},pushed_at\n{row},2026-03-01T10:00Z\n")
    known = times.load(tmp_path / "times.csv", roster, None)
    assert set(known.of) == {"ada"}


def test_titles_that_come_again_are_no_student_and_others_begin_another_table(tmp_path: Path) -> None:
    canvas = "Student,ID,SIS User ID,SIS Login ID,Section,Lab 1 (55)\n    Points Possible,,,,,20\n"
    table = tmp_path / "table.csv"
    table.write_text(canvas + '"L, Ada",11,S1,al1,A,\n' + canvas + '"R, Bob",12,S2,bob,B,\n')
    assert [entry.student for entry in roster_files.load(table).entries] == ["al1", "bob"]
    table.write_text(canvas + '"L, Ada",11,S1,al1,A,\n' + canvas.replace("55", "77") + '"R, Bob",12,S2,bob,B,\n')
    with pytest.raises(RosterError, match=r"line 4 has titles once more, and 'Lab 1 \(77\)' instead of 'Lab 1 \(55\)'"):
        roster_files.load(table)
    table.write_text("student,name\nname,Student\nstudent,Name\nada,\n")
    assert [entry.student for entry in roster_files.load(table).entries] == ["name", "ada"]
    table.write_text("student,submitted_at\nada,2026-03-01T12:00Z\nStudent,Submitted_at\n")
    assert list(times.load(table, None, None).of) == ["ada"]


@pytest.mark.parametrize("way", WAYS)
def test_a_space_before_quotes_is_no_part_of_a_cell(way: str, tmp_path: Path) -> None:
    file, row = tmp_path / "class.csv", ("ada", "a, b", "blue", "https://x.example/a.git", "2026-03-01T10:00Z", "Ada")
    rows = [("student", "text", "team", "repository", "submitted_at", "name"), row]
    file.write_text("".join(",".join(f'"{cell}"' for cell in cells) + "\n" for cells in rows))
    expected = repr(WAYS[way](file)) if way != "roster" else repr(roster_files.load(file).entries)
    file.write_text("".join(", ".join(f'"{cell}"' for cell in cells) + "\n" for cells in rows))
    assert (repr(WAYS[way](file)) if way != "roster" else repr(roster_files.load(file).entries)) == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_cell_that_is_too_long_is_refused_with_its_line(way: str, tmp_path: Path) -> None:
    file = tmp_path / "class.csv"
    file.write_text(f"student,text,team,repository,submitted_at\nada,a,b,c,2026-03-01T10:00Z\nbob,{'x' * 200_000}\n")
    with pytest.raises(ValueError, match=r"class.csv, line 3: .*larger than field limit .*a quote before it is not"):
        WAYS[way](file)


def test_two_files_of_excel_one_after_the_other_are_one_table(tmp_path: Path) -> None:
    file = tmp_path / "class.csv"
    for quote in ("", '"'):
        parts = [f"\ufeff{quote}student{quote},name\n{key},{key.title()}\n" for key in ("ada", "bob")]
        file.write_text("".join(parts))
        assert [entry.student for entry in roster_files.load(file).entries] == ["ada", "bob"]
