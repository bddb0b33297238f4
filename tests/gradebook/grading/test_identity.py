"""Students keep what people decided about them when their login changes, and every name of theirs finds them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from gradebook import identity
from gradebook.export.book import Book
from gradebook.grading.manual_grading import marks
from gradebook.identity import Directory, UnknownStudentError
from gradebook.intake import roster_files
from gradebook.results import ClassResult, Student, StudentResult
from gradebook.settings import SettingsError
from gradebox.run.overrides import OverrideError
from tests.gradebook.conftest import SmallClass

CANVAS = "Student,ID,SIS User ID,SIS Login ID,Section\n"
ADA, BOB, WEI, WEI_2 = (
    *('"Lovelace, Ada",101,S1,al001,A\n', '"Ross, Bob",102,S2,bob,A\n'),
    *('"Chen, Wei",104,S4,wc004,A\n', '"Chen, Wei",105,S5,wc005,A\n'),
)


def grade(small: SmallClass, roster: str, settings: str = "") -> tuple[ClassResult, str]:
    folder = small.submissions.parent
    (folder / "roster.csv").write_text(roster)
    (folder / "class.toml").write_text(settings)
    said = io.StringIO()
    result = small.grade(
        roster=folder / "roster.csv", configuration=folder / "class.toml", console=Console(file=said, width=1000)
    )
    return result, said.getvalue()


def line(result: ClassResult, student: str) -> StudentResult:
    return next(row for row in result.students if row.student == student)


def mark(small: SmallClass, student: str) -> None:
    folder = small.out / "manual_grading"
    folder.mkdir(exist_ok=True)
    (folder / "rubric.toml").write_text(
        'title = "Talk"\nreleased = true\n[[criterion]]\nid = "talk"\ntitle = "Talk"\npoints = 5\n'
    )
    content = next(row.content for row in _students(small) if row.student == student)
    assert content is not None
    given = marks.Mark(
        criterion="talk", content=content, adjust=-1, done=True, by="tara", at=marks._now(), revision=0  # type: ignore[arg-type]
    )  # fmt: skip
    marks.change(small.out, f"student {student}", given)


def _students(small: SmallClass) -> list[Student]:
    from gradebook.store import Gradebook

    with Gradebook(small.out, locked=False) as gradebook:
        return gradebook.students()


def test_a_login_that_changes_keeps_marks_extensions_overrides_and_excuses(small_class: SmallClass) -> None:
    small_class.hands_in("al001")
    small_class.hands_in("bob")
    settings = (
        "deadline = 2026-03-01T12:00:00+00:00\n[late]\npercent_per_day = 10\n"
        "[extensions]\nal001 = 2026-03-08T12:00:00+00:00\n"
    )
    grade(small_class, CANVAS + ADA + BOB, settings)
    mark(small_class, "al001")
    book = Book.open(small_class.out)
    book.override("al001", "lab1.memory", "3.5", "by hand")
    book.excuse("bob", "all", "ill")
    before = line(Book.open(small_class.out).result, "al001")
    # The login is another one, in the roster and on what is handed in.
    (small_class.submissions / "al001").rename(small_class.submissions / "ada.lovelace")
    result, said = grade(small_class, CANVAS + ADA.replace("al001", "ada.lovelace") + BOB, settings)
    after = line(result, "al001")
    assert (after.score, after.manual, after.status) == (before.score, before.manual, "graded")
    assert after.manual is not None
    assert after.manual.points == 4
    assert line(result, "bob").status == "excused"
    assert "login was 'al001' and is 'ada.lovelace'" in said
    # And the new login is a name of hers: in class.toml, and for decisions.
    grade(small_class, CANVAS + ADA.replace("al001", "ada.lovelace") + BOB, settings.replace("al001", '"ada.lovelace"'))
    assert "al001 (Lovelace, Ada) gets 2 points" in Book.open(small_class.out).override(
        "ada.lovelace", "lab1.memory", "2", "again"
    )
    assert small_class.graded == small_class.graded[:2], "nothing was graded again"


def test_a_login_that_somebody_else_gets_is_somebody_else(small_class: SmallClass) -> None:
    small_class.hands_in("bob")
    grade(small_class, CANVAS + ADA + BOB)
    (small_class.submissions / "bob").rename(small_class.submissions / "al001")
    new = '"Noether, Emmy",201,S9,al001,A\n'
    result, said = grade(small_class, CANVAS + ADA.replace("al001", "ada") + new)
    assert {row.name: row.student for row in result.students} == {"Lovelace, Ada": "al001", "Noether, Emmy": "201"}
    assert "Noether, Emmy is called 'al001', as Lovelace, Ada (al001) was: in this class the key is '201'" in said
    with pytest.raises(ValueError, match=r"'al001' may be '201' \(Noether, Emmy\), 'al001' \(Lovelace, Ada\)"):
        Book.open(small_class.out).override("al001", "lab1.memory", "2", "whose?")
    # What was written by key before may mean both now: no points change in silence.
    overrides = small_class.out / "overrides.toml"
    overrides.write_text('[[override]]\nstudent = "al001"\ncriterion = "lab1.memory"\npoints = 1\nreason = "x"\n')
    with pytest.raises(OverrideError, match=r"'al001' may be .* write an identifier that only one has"):
        grade(small_class, CANVAS + ADA.replace("al001", "ada") + new)
    overrides.write_text(overrides.read_text().replace("al001", "101"))
    result, _ = grade(small_class, CANVAS + ADA.replace("al001", "ada") + new)
    assert str(line(result, "al001").score) == "1"


def test_a_decision_that_a_command_recorded_stays_with_its_student(small_class: SmallClass) -> None:
    small_class.hands_in("al001")
    grade(small_class, CANVAS + ADA + BOB)
    book = Book.open(small_class.out)
    book.override("al001", "lab1.memory", "3.5", "by hand")
    book.excuse("bob", "all", "ill")
    book.hold_back("al001", "talk first")
    emmy = '"Noether, Emmy",201,S9,al001,A\n'
    result, said = grade(small_class, CANVAS + ADA.replace("al001", "ada") + BOB + emmy)
    assert [row.criterion for row in line(result, "al001").overrides] == ["lab1.memory"]
    assert line(result, "al001").held_back is not None
    assert (line(result, "201").overrides, line(result, "201").held_back) == ((), None)
    assert line(result, "bob").status == "excused"
    assert "may be" not in said


def test_who_left_and_is_still_among_the_submissions_is_named_as_that(small_class: SmallClass) -> None:
    for name in ("al001", "bob", "stranger"):
        small_class.hands_in(name)
    grade(small_class, CANVAS + ADA + BOB)
    emmy = '"Noether, Emmy",201,S9,emmy,A\n'
    result, said = grade(small_class, CANVAS + ADA + emmy)
    left = next(text for text in said.splitlines() if "no longer in" in text)
    assert left.partition(" overrides say: ")[2].startswith("bob. Remove their work")
    assert "stranger" not in left
    # The work may be that of a student who is new, and whom nobody recognised: no 0 in silence.
    assert line(result, "emmy").withheld
    assert "but bob (of a former roster), stranger match nobody in the roster" in line(result, "emmy").reason


def test_who_left_is_named_where_something_was_decided_about_them(small_class: SmallClass) -> None:
    small_class.hands_in("al001")
    small_class.hands_in("bob")
    grade(small_class, CANVAS + ADA + BOB)
    mark(small_class, "bob")
    (small_class.submissions / "bob").rename(small_class.submissions.parent / "gone")
    grade(small_class, CANVAS + ADA)
    assert any("marks for whom the class does not have" in text and "bob" in text for text in notices(small_class))
    (small_class.out / "overrides.toml").write_text(
        '[[override]]\nstudent = "102"\ncriterion = "lab1.memory"\npoints = 1\nreason = "x"\n'
    )
    left = "has no effect: there is no such student in this class any more: Ross, Bob (bob) is no longer in the roster"
    late = "[extensions]\nbob = 2026-03-08T12:00:00+00:00\n"
    (small_class.out / "excused.toml").write_text('[[excused]]\nstudent = "bob"\nlab = 2\nreason = "ill"\n')
    _, said = grade(small_class, CANVAS + ADA, late)
    for decision in ("the override of lab1.memory for '102'", "[extensions] 'bob'", "excused.toml's entry of 'bob'"):
        assert f"{decision} {left}" in said
    with pytest.raises(ValueError, match="is no longer in the roster"):
        Book.open(small_class.out).override("bob", "lab1.memory", "2", "gone")
    # Who comes back has all of it.
    (small_class.submissions.parent / "gone").rename(small_class.submissions / "bob")
    result, said = grade(small_class, CANVAS + ADA + BOB, late)
    back = line(result, "bob")
    assert back.grade is not None
    assert (str(next(row for row in back.grade.labs[0].criteria if row.override).points), left in said) == ("1", False)
    assert back.manual is not None
    assert back.manual.points == 4


def test_who_left_keeps_the_name_of_an_earlier_roster(small_class: SmallClass) -> None:
    small_class.hands_in("al001")
    small_class.hands_in("bob")
    small_class.hands_in("stranger")
    grade(small_class, CANVAS + ADA + BOB)
    result, _ = grade(small_class, CANVAS + ADA)
    assert (line(result, "bob").name, line(result, "bob").columns) == ("Ross, Bob", {})
    assert line(result, "stranger").name == ""


def notices(small: SmallClass) -> list[str]:
    return Book.open(small.out).notices()


NAMES = """student,name,email,team
ada,Ada Lovelace,ada@example.edu,Red
bob,Bob Ross,bob@example.edu,Red
wei,Wei,w@x.edu,
"""


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("ada", ("ada",)), ("ADA", ("ada",)), ("Ada Lovelace", ("ada",)), ("Lovelace, Ada", ("ada",)),
        ("ada@example.edu", ("ada",)), ("red", ("ada", "bob")), ("Wei", ("wei",)),
    ],
)  # fmt: skip
def test_a_name_a_team_or_an_identifier_means_its_student(tmp_path: Path, name: str, keys: tuple[str, ...]) -> None:
    assert directory(tmp_path, NAMES).keys(name) == keys


@pytest.mark.parametrize("name", ["adb", "wc00", "Adb", "bob@example.ed"])
def test_nobody_is_suggested_where_nobody_is_meant(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownStudentError, match="there is no such student in this class; write the key") as info:
        directory(tmp_path, NAMES).key(name)
    assert not any(other in str(info.value) for other in ("ada", "bob", "Ada", "wei"))


@pytest.mark.parametrize("name", ["Chen, Wei", "wei chen"])
def test_a_name_that_two_students_have_means_neither(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownStudentError, match=r"'wc004' \(Chen, Wei\), 'wc005' \(Chen, Wei\): write an identifier"):
        directory(tmp_path, CANVAS + WEI + WEI_2).key(name)


def test_a_name_of_two_students_does_not_mean_work_of_nobody(tmp_path: Path) -> None:
    """A folder with the name of both is a key, and a decision about it would be about none of them."""
    known = [*students(tmp_path, CANVAS + WEI + WEI_2), Student(student="Chen, Wei", name="", status="graded")]
    with pytest.raises(UnknownStudentError, match=r"'wc004' \(Chen, Wei\), 'wc005' \(Chen, Wei\)"):
        Directory(known).keys("Chen, Wei")
    assert Directory(known).keys("Chen, Wei", recorded=True) == ("Chen, Wei",)
    alone = Student(student="mallory", name="", status="graded")
    assert Directory([*known, alone]).keys("mallory") == ("mallory",)


def test_two_entries_for_one_student_are_refused(small_class: SmallClass) -> None:
    small_class.hands_in("al001")
    text = "[extensions]\nal001 = 2026-03-08T12:00:00+00:00\n101 = 2026-03-09T12:00:00+00:00\n"
    with pytest.raises(SettingsError, match=r"'al001' and '101' are both al001, with different deadlines"):
        grade(small_class, CANVAS + ADA, text)


def directory(folder: Path, roster: str) -> Directory:
    return Directory(students(folder, roster))


def students(folder: Path, roster: str) -> list[Student]:
    (folder / "roster.csv").write_text(roster)
    return [
        Student(student=entry.student, name=entry.name, columns=entry.columns, status="missing", team=entry.team)
        for entry in roster_files.load(folder / "roster.csv").entries
    ]


SHARED = "student,name,email\nann,Ann,x@x.edu\nbob,Ben,x@x.edu\n"
MOODLE = "Identifier,Full name,Email address,Grade,Last modified (grade)\n"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # The rosters of two platforms: the SIS ID says who is who.
        (CANVAS + ADA + BOB, "Username,ID number\nbob,S2\nlovelace,S1\n", {"bob": "bob", "lovelace": "al001"}),
        # Moodle numbers participants per assignment: the address says who is who.
        (
            MOODLE + "Participant 5,Ada,a@x.edu,,\nParticipant 9,Bob,b@x.edu,,\n",
            MOODLE + "Participant 5,Bob,b@x.edu,,\nParticipant 9,Ada,a@x.edu,,\n",
            {"Participant 5": "Participant 9", "Participant 9": "Participant 5"},
        ),
        # Two students who share an address are not taken for each other.
        (SHARED, SHARED.replace("ann,Ann,x@x.edu\n", ""), {"bob": "bob"}),
        # A key of the instructor's own list may be what a platform calls a login or an address, and no counted number.
        ("student,name\nada,Ada\n11,Eve\n", CANVAS + '"Low, Ada",11,S1,ada,A\n', {"ada": "ada"}),
        ("student,name\nada-l,Ada\n", "username,email,github_id\nAda-L,a@x.edu,7\n", {"Ada-L": "ada-l"}),
        ("Email,name\na@x.edu,Ada\n", "student,name\nA@x.edu,Ada Low\n", {"A@x.edu": "a@x.edu"}),
        # Only a name is no reason to believe it.
        ("student,name\nann,Ann Lee\n", "student,name\nann2,Ann Lee\n", {"ann2": "ann2"}),
    ],
)  # fmt: skip
def test_who_is_who_in_another_roster(tmp_path: Path, first: str, second: str, expected: dict[str, str]) -> None:
    known: tuple[identity.Record, ...] = ()
    for text in (first, second):
        (tmp_path / "roster.csv").write_text(text)
        read = roster_files.load(tmp_path / "roster.csv")
        recognised = identity.recognise(read, known)
        known = identity.records(identity.stored(recognised.records), ())
    keys = [entry.student for entry in read.entries]
    assert dict(zip(keys, (entry.student for entry in recognised.roster.entries), strict=True)) == expected
