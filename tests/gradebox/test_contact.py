"""Where students get help: read from `course.toml`, refused with one line, and shown if a person may be needed."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import grader
from gradebox import next_command, report
from gradebox.course import contact
from gradebox.course import course as courses
from gradebox.course.contact import NOBODY, Contact
from gradebox.course.rubric import Hours
from gradebox.report import html, terminal
from gradebox.run.grade import CheckReport, Circumstances, Grade, Outcome, grade
from gradebox.run.options import Options
from tests.gradebox.small_course import write_course

pytestmark = pytest.mark.usefixtures("_courses_are_forgotten")

ROOT = Path(__file__).parents[2]
LABS = 'labs = ["basics", "further"]'
STAFF = Contact(
    office_hours="Tuesdays, 14:00 to 16:00",
    forum="https://forum.example.org/c/gpu",
    chat="#gpu-labs <ask>",
    email="gpu-labs@example.org",
)
UNDECIDED = {"lab1.memory.peak_equals_reference": CheckReport(Outcome.NEEDS_REVIEW, "cannot tell")}


def graded(reports: Mapping[str, CheckReport]) -> Grade:
    """A grade of Lab 1; checks that are not named passed."""
    course = grader.course().rubric
    every = {check.id: CheckReport(Outcome.PASSED) for check in course.checks()} | dict(reports)
    here = Circumstances("labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    return grade(course, course.select((1,)), every, here)


def course_with(tmp_path: Path, table: str) -> courses.Course:
    return courses.load(write_course(tmp_path, ("course.toml", LABS, f"{LABS}\n{table}")))


def test_a_course_names_nobody_unless_it_says_so(tmp_path: Path) -> None:
    assert not grader.course().contact
    assert course_with(tmp_path / "a", "").contact == NOBODY
    assert not course_with(tmp_path / "b", '[contact]\noffice_hours = ""\nforum = ""\nchat = ""\nemail = ""').contact


def test_a_course_names_what_it_has(tmp_path: Path) -> None:
    details = course_with(tmp_path, '[contact]\nemail = "a@b.example"\nchat = "#labs"').contact
    assert list(details.entries()) == [("chat", "#labs"), ("e-mail", "a@b.example")]
    assert details.line() == "chat: #labs; e-mail: a@b.example"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[contact]\nphone = "1"', "course.toml:7: unknown key 'phone'; known are office_hours, forum, chat, email"),
        ('[contact]\nmail = "1"', "course.toml:7: unknown key 'mail'; did you mean 'email'?"),
        ("[contact]\nchat = 3", "course.toml:7: chat = 3 is not a text"),
        ('contact = "a@b.example"', "course.toml:6: contact must be a table, not 'a@b.example'"),
        ('[contact]\nchat = "  "', "course.toml:7: chat = '  ': expected one line without spaces at its ends"),
        ('[contact]\nchat = "a\\nb"', "course.toml:7: chat = 'a\\nb': expected one line"),
        ('[contact]\nchat = "a\\u001b[2J"', "course.toml:7: chat = 'a\\x1b[2J': expected one line"),
        (f'[contact]\nchat = "{"x" * 201}"', f"course.toml:7: chat = '{'x' * 201}': expected at most 200 characters"),
        ('[contact]\nforum = "our forum"', "course.toml:7: forum = 'our forum': expected a web address"),
        ('[contact]\nforum = "javascript:alert(1)"', "course.toml:7: forum = 'javascript:alert(1)': expected a web"),
        ('[contact]\nforum = "https://"', "course.toml:7: forum = 'https://': expected a web address"),
        ('[contact]\nemail = "the staff"', "course.toml:7: email = 'the staff': expected one e-mail address"),
        ('[contact]\nemail = "a@b.c, d@e.f"', "course.toml:7: email = 'a@b.c, d@e.f': expected one e-mail address"),
        ('hours = "3 to 4"', 'course.toml:6: hours = "3 to 4": expected a number of hours or a range, like "3-4"'),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, table: str, said: str) -> None:
    with pytest.raises(courses.ReadingError) as caught:
        course_with(tmp_path, table)
    assert str(caught.value).partition("small_course")[2].partition("/")[2].startswith(said) or said in str(
        caught.value
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "words"), [("3-4", "3 to 4"), ("3", "3"), ("0.5-1.5", "0.5 to 1.5"), ("4-4", "4")])
def test_hours_of_a_lab(tmp_path: Path, text: str, words: str) -> None:
    folder = write_course(tmp_path, ("basics/lab.toml", "points = 6", f'points = 6\nhours = "{text}"'))
    first, second = courses.load(folder).labs
    assert isinstance(first.hours, Hours)
    assert first.hours.in_words == words
    assert second.hours is None


@pytest.mark.parametrize("text", ["4-3", "0-3", "0", "-1", "3-", "-", "three", "3-4-5", "1e3", "٣"])
def test_hours_that_are_none_are_refused_with_their_line(tmp_path: Path, text: str) -> None:
    folder = write_course(tmp_path, ("basics/lab.toml", "points = 6", f'points = 6\nhours = "{text}"'))
    with pytest.raises(courses.ReadingError, match=r"basics/lab\.toml:4: hours = .*, like \"3-4\"$"):
        courses.load(folder)


def shown(grade: object, **more: object) -> str:
    with redirect_stdout(io.StringIO()) as output:
        terminal.show(grade, (), (), **more)  # type: ignore[arg-type]
    return " ".join(output.getvalue().split())


def test_the_terminal_names_the_staff_if_a_person_has_to_look() -> None:
    undecided, decided = graded(UNDECIDED), graded({})
    line = "Course staff: office hours: Tuesdays, 14:00 to 16:00; forum: https://forum.example.org/c/gpu;"
    assert line in shown(undecided, contact=STAFF)
    assert "Course staff" not in shown(decided, contact=STAFF)
    assert "Course staff" not in shown(undecided)


def test_the_page_names_the_staff_and_nothing_in_it_becomes_markup() -> None:
    page = html.render(graded(UNDECIDED), contact=STAFF)
    assert "<h2>Getting help</h2>" in page
    assert '<a href="https://forum.example.org/c/gpu">https://forum.example.org/c/gpu</a>' in page
    assert '<a href="mailto:gpu-labs@example.org">gpu-labs@example.org</a>' in page
    assert "#gpu-labs &lt;ask&gt;" in page
    assert "Getting help" not in html.render(graded(UNDECIDED))


def test_a_report_has_it_on_disk(tmp_path: Path) -> None:
    report.write(graded({}), tmp_path, contact=STAFF)
    assert "gpu-labs@example.org" in (tmp_path / "grade.html").read_text()


def test_next_names_the_staff_of_the_second_course(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = ROOT / "examples" / "courses" / "three_questions"
    options = Options(course=str(folder), submission=str(folder / "labs"), report=str(tmp_path))
    next_command.show_next(options, hints=0, check=None, first_grade=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "ask office hours: Tuesdays, 14:00 to 16:00, room 2.31; e-mail: three-questions@example.org" in said


def test_next_names_nobody_if_the_course_does_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = Options(course=str(ROOT / "grader"), submission=str(ROOT / "labs"), report=str(tmp_path))
    next_command.show_next(options, hints=0, check=None, first_grade=False)
    assert "  ask " not in capsys.readouterr().out


def test_an_address_is_one_that_a_page_can_link_to() -> None:
    assert contact.is_address("https://a.example/b")
    for text in ("ftp://a.example", "https://a b.example", "//a.example", "https://[", "#labs", 'https://a"b.example'):
        assert not contact.is_address(text)
