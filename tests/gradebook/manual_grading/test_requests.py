"""Requests to look again: imported, listed, answered, and told to who asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradebook.export.book import Book
from gradebook.grading.manual_grading import ManualGradingError, requests
from gradebook.grading.manual_grading.requests import NewRequest
from grader.cli import app
from tests.gradebook.manual_grading.conftest import ManualClass

STUDENTS, CRITERIA = ["ada", "bob"], ["lab1.memory", "manual.discussion"]
TEXT = "My peak is right.\nSee line 3 <b>."


def test_a_request_and_its_answer_are_read_back(tmp_path: Path) -> None:
    (name,) = requests.add(tmp_path, [NewRequest("ada", TEXT, "lab1.memory")], STUDENTS, CRITERIA)
    requests.answer(tmp_path, name, "Yes:\nit is.", "Ana")
    (request,) = requests.load(tmp_path)
    assert (request.student, request.text, request.about) == ("ada", TEXT, "lab1.memory")
    assert (request.answer, request.answered_by) == ("Yes:\nit is.", "Ana")
    requests.answer(tmp_path, name, "", "Ana")
    assert requests.load(tmp_path)[0].answered_at is None


def test_an_answered_request_that_is_asked_again_is_named(tmp_path: Path) -> None:
    again = NewRequest("ada", TEXT, "lab1.memory")
    (name,) = requests.add(tmp_path, [again], STUDENTS, CRITERIA)
    assert requests.settled(tmp_path, [again], []) == []
    requests.answer(tmp_path, name, "No.", "Ana")
    assert requests.settled(tmp_path, [again, again], []) == [name]


def test_the_same_form_imported_twice_adds_nothing(tmp_path: Path) -> None:
    form = tmp_path / "form.csv"
    form.write_text("Timestamp;Student;About;Text\n1;ada;lab1.memory;please\n2;bob;;look again\n")
    assert len(requests.add(tmp_path, requests.read(form), STUDENTS, CRITERIA)) == 2
    form.write_text(form.read_text() + "3;bob;manual.discussion;too few\n")
    assert len(requests.add(tmp_path, requests.read(form), STUDENTS, CRITERIA)) == 1
    toml = tmp_path / "more.toml"
    toml.write_text('[[request]]\nstudent = "ada"\nabout = "lab1.memory"\ntext = "please"\n')
    assert requests.add(tmp_path, requests.read(toml), STUDENTS, CRITERIA) == []
    toml.write_text('[[request]]\nstudent = "bob"\nabout = "All"\ntext = "look again"\n')
    assert requests.add(tmp_path, requests.read(toml), STUDENTS, CRITERIA) == []


def test_a_form_may_identify_students_as_a_roster_does(tmp_path: Path) -> None:
    form = tmp_path / "form.csv"
    form.write_text("Timestamp,Email Address,student id,Text\n1,ada@uni.example,,please\n2,bob@uni.example,17,look\n")
    assert [request.student for request in requests.read(form)] == ["ada@uni.example", "bob@uni.example"]
    form.write_text("Timestamp,Text\n1,please\n")
    with pytest.raises(ManualGradingError, match="no column 'student' in its first line"):
        requests.read(form)


@pytest.mark.parametrize(
    ("new_request", "words"),
    [
        (NewRequest("eve", "x"), "no such student"),
        (NewRequest("ada", "x", "lab1.memry"), "there are lab1.memory"),
        (NewRequest("ada", " "), "needs a text"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_nothing_written(
    tmp_path: Path, new_request: NewRequest, words: str
) -> None:
    with pytest.raises(ManualGradingError, match=words):
        requests.add(tmp_path, [NewRequest("bob", "fine"), new_request], STUDENTS, CRITERIA)
    assert requests.load(tmp_path) == ()


def test_all_in_a_form_is_a_request_about_everything(tmp_path: Path) -> None:
    (tmp_path / "form.csv").write_text("student,about,text\nada,all,please\nbob,All,look again\n")
    requests.add(tmp_path, requests.read(tmp_path / "form.csv"), STUDENTS, CRITERIA)
    assert [request.about for request in requests.load(tmp_path)] == ["", ""]


def test_a_file_without_the_columns_says_which(tmp_path: Path) -> None:
    (tmp_path / "form.csv").write_text("who,text\nada,x\n")
    with pytest.raises(ManualGradingError, match="no column 'student'"):
        requests.read(tmp_path / "form.csv")
    (tmp_path / "form.csv").write_text("student,Question,text\nada,lab1.memory,x\n")
    with pytest.raises(ManualGradingError, match="a column 'Question', which nothing reads: call it about"):
        requests.read(tmp_path / "form.csv")
    (tmp_path / "form.csv").write_text("student,about,text,Points\nada,lab1.memory,x,5\n")
    with pytest.raises(
        ManualGradingError, match=r"a column 'Points', and a request gives no points: remove it\. Marks"
    ):
        requests.read(tmp_path / "form.csv")


def test_a_request_of_a_team_is_answered_once(manual: ManualClass) -> None:
    def run(*arguments: str) -> str:
        return CliRunner().invoke(app, ["manual", arguments[0], str(manual.folder), *arguments[1:]]).output

    run("ask", "blue", "lab1.memory", "our peak")
    first, second = requests.load(manual.folder)
    assert requests.once([first, second], {"bob", "cleo"}) == [first]
    assert f"{first.id} of bob, and cleo, who asked the same: answered" in run("answer", first.id, "No.")
    assert {request.answer for request in requests.load(manual.folder)} == {"No."}
    assert f"{second.id} of cleo: answered" not in run("answer", second.id, "")
    assert {request.answer for request in requests.load(manual.folder)} == {""}
    run("ask", "ada", "lab1.memory", "our peak")
    run("answer", first.id, "Yes.")
    assert [request.answer for request in requests.load(manual.folder)] == ["Yes.", "Yes.", ""]


def test_of_a_form_with_somebody_unknown_nothing_is_recorded(manual: ManualClass, tmp_path: Path) -> None:
    rows = "bob,my peak,\nprivate@x.example,look  again,\nada,the axis,lab9.x\n"
    (tmp_path / "form.csv").write_text(f"Email Address,text,about\n{rows}")
    done = CliRunner().invoke(app, ["manual", "import", str(manual.folder), str(tmp_path / "form.csv")])
    assert done.exit_code == 2
    assert "line 3, the request 'look again': 'private@x.example': there is no such student" in done.output
    assert "line 4, the request 'the axis' of 'ada' is about 'lab9.x'; there are" in done.output
    assert "Nothing was recorded" in done.output
    assert requests.load(manual.folder) == ()


def test_the_answer_stands_in_the_feedback_of_who_asked_only(manual: ManualClass) -> None:
    new = [NewRequest("bob", TEXT, "lab1.memory"), NewRequest("eve", "I was ill")]
    names = requests.add(manual.folder, new, ["bob", "eve"], ["lab1.memory"])
    listed = CliRunner().invoke(app, ["manual", "requests", str(manual.folder)])
    asked_at = f"{requests.load(manual.folder)[0].asked_at:%Y-%m-%d %H:%M}"
    assert f"{names[0]}  bob  lab1.memory  {asked_at} UTC\n" in listed.output
    requests.answer(manual.folder, names[0], "No: <i>the first step</i> counts.", "Ana")
    Book.open(manual.folder).export()
    pages = {path.name: path.read_text() for path in (manual.folder / "exports" / "feedback").iterdir()}
    assert "No: &lt;i&gt;the first step&lt;/i&gt; counts." in pages["bob.html"]
    assert "See line 3 &lt;b&gt;." in pages["bob.html"]
    assert "No: <i>the first step</i> counts." in pages["bob.md"].partition("Answer:")[2]
    assert "Not answered yet" in pages["eve.html"]
    assert "the first step" not in pages["cleo.html"]


def test_a_folder_that_is_no_class_has_no_list_of_requests(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["manual", "requests", str(tmp_path / "sprign")])
    assert (listed.exit_code, "there is no gradebook in" in listed.output) == (2, True)
