"""Grades and comments arrive on a Canvas as they should, once, and never over what somebody has decided there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gradebook.export import view
from gradebook.plugins.canvas_push import messages
from gradebook.plugins.canvas_push.client import Client, PushError
from gradebook.plugins.canvas_push.push import PushRequest, Report, push
from gradebook.results import HeldBack, StudentResult
from gradebox.run.grade import CheckReport, Grade, Outcome
from tests.gradebook.export.classes import a_class, graded, student
from tests.gradebook.plugins.canvas_push import canvas_server
from tests.gradebook.plugins.canvas_push.canvas_server import TOKEN, CanvasState, Student, StudentRecord, canvas

TITLE = "GPU labs"
ASSIGNMENT = {
    "id": 4711, "name": TITLE, "points_possible": 20.0, "grading_type": "points", "published": True,
    "post_manually": False, "moderated_grading": False, "anonymize_students": False, "group_category_id": None,
}  # fmt: skip
NAMES = ("ada", "bob", "eve", "mia", "zoe")


class Teaching:
    """A class here, the same course on Canvas, and the command between them."""

    def __init__(self, folder: Path) -> None:
        self.state = CanvasState(
            students=[
                Student(100 + number, name.title(), f"S{number}", name, f"{name}@uni.edu", 31 + number % 2)
                for number, name in enumerate(NAMES)
            ],
            assignments=[{"id": 4710, "name": "Essay", "points_possible": 5.0, "published": True}, dict(ASSIGNMENT)],
        )
        self.state.assignments.reverse()
        self.state.records = {person.id: StudentRecord() for person in self.state.students}
        self.folder = folder
        self.scores = dict.fromkeys(NAMES, 20)
        self.columns: Callable[[str], dict[str, str]] = lambda name: {"Student": name.title(), "SIS Login ID": name}
        self.excused: set[str] = set()
        self.held_back: set[str] = set()
        self.said: list[str] = []
        self.slept: list[float] = []
        self.now = datetime(2026, 3, 2, tzinfo=UTC)
        self.url = ""

    def view(self) -> view.View:
        rows = [self._row(name) for name in self.scores]
        return view.of(a_class(rows, title=TITLE))

    def _row(self, name: str) -> StudentResult:
        held = HeldBack(student=name, reason="talk first") if name in self.held_back else None
        if name in self.excused:
            row = StudentResult(student=name, status="waiting", columns=self.columns(name))
            return replace(row, status="excused", held_back=held)  # type: ignore[arg-type]
        result = student(name, _grade(name), columns=self.columns(name))
        return replace(result, score=Decimal(str(self.scores[name])), held_back=held)

    def push(self, *, send: bool = True, **options: Any) -> Report:
        request = PushRequest(folder=self.folder, **{"course": "42", "assignment": TITLE, "send": send} | options)
        client = Client(self.url, TOKEN, self.said.append, self.sleep)
        return push(self.view(), request, client, self.said.append, self.sleep, lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)

    @property
    def on_canvas(self) -> dict[str, float | None]:
        return {name: self.state.of(name).score for name in NAMES}

    @property
    def updates(self) -> int:
        return sum(request.startswith("POST") for request in self.state.requests)


@functools.cache
def _grade(name: str) -> Grade:
    lost = CheckReport(Outcome.FAILED, f"{name} saw 3, expected 4", "look")
    return graded({"lab1.memory.every_stage_present": lost}, student=name)


@pytest.fixture
def teaching(tmp_path: Path) -> Iterator[Teaching]:
    made = Teaching(tmp_path)
    with canvas(made.state) as url:
        made.url = url
        yield made


def kinds(report: Report) -> dict[str, str]:
    return {change.target.student: change.kind for change in report.planned}


# --- what arrives ---------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_everything_and_changes_nothing(teaching: Teaching) -> None:
    teaching.state.by_hand("bob", 20)
    report = teaching.push(send=False)
    assert kinds(report) == {"ada": "new", "bob": "comment", "eve": "new", "mia": "new", "zoe": "new"}
    assert teaching.updates == 0
    assert list(teaching.folder.iterdir()) == []
    assert "nothing was sent; --push sends this (5 of 5 students)" in messages.text(report)


def test_grades_and_comments_of_several_pages_of_students_arrive(teaching: Teaching) -> None:
    teaching.scores |= {"eve": 12.25}
    report = teaching.push()
    assert teaching.on_canvas == {**dict.fromkeys(NAMES, 20.0), "eve": 12.25}
    (comment,) = teaching.state.comments("eve")
    assert comment.startswith("GPU labs: 12.25 of 20 points")
    assert "eve saw 3, expected 4" in comment
    assert "ada" not in comment
    assert report.left == ()
    assert "sent: 5 of 5 students" in messages.text(report)
    assert not messages.is_open(report)


def test_a_second_push_sends_nothing_and_no_comment_twice(teaching: Teaching) -> None:
    teaching.push()
    before = teaching.updates
    report = teaching.push()
    assert teaching.updates == before == 1
    assert set(kinds(report).values()) == {"same"}
    assert all(len(teaching.state.comments(name)) == 1 for name in NAMES)


def test_another_computer_that_remembers_nothing_writes_no_comment_twice(teaching: Teaching, tmp_path: Path) -> None:
    teaching.push()
    teaching.folder = tmp_path / "elsewhere"
    teaching.folder.mkdir()
    teaching.push()
    assert all(len(teaching.state.comments(name)) == 1 for name in NAMES)


def test_only_what_a_regrade_changed_is_sent_with_a_new_comment(teaching: Teaching) -> None:
    teaching.push()
    teaching.scores |= {"ada": 17, "bob": 21}
    report = teaching.push()
    assert {name: kind for name, kind in kinds(report).items() if kind != "same"} == {"ada": "lowered", "bob": "raised"}
    assert "lowered    ada: 20 -> 17, with a comment" in messages.text(report)
    assert [len(teaching.state.comments(name)) for name in NAMES] == [2, 2, 1, 1, 1]
    assert [teaching.state.of(name).gradings for name in NAMES] == [2, 2, 1, 1, 1]
    teaching.scores |= {"ada": 20}
    teaching.push()
    assert len(teaching.state.comments("ada")) == 3  # the latest one has to be the one that counts


def test_many_students_go_in_parts(teaching: Teaching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradebook.plugins.canvas_push.push._PART", 2)
    teaching.push()
    assert teaching.updates == 3
    assert "sending 3 to 4 of 5 ..." in teaching.said
    assert set(teaching.on_canvas.values()) == {20.0}


def test_without_comments_only_grades_go(teaching: Teaching) -> None:
    teaching.push(comments=False)
    assert set(teaching.on_canvas.values()) == {20.0}
    assert not any(teaching.state.comments(name) for name in NAMES)


def test_an_excused_student_is_excused_there(teaching: Teaching) -> None:
    teaching.excused = {"mia"}
    report = teaching.push()
    assert teaching.state.of("mia").excused
    assert teaching.on_canvas["mia"] is None
    assert "excused    mia: no grade -> excused" in messages.text(report)
    assert kinds(teaching.push())["mia"] == "same"


def test_whoever_has_no_score_yet_is_left_alone(teaching: Teaching) -> None:
    teaching.push()
    waiting = replace(teaching._row("ada"), status="waiting", grade=None, score=None)
    rows = [waiting, *(teaching._row(name) for name in NAMES[1:])]
    request = PushRequest(folder=teaching.folder, course="42", assignment=TITLE, send=True)
    class_view = view.of(a_class(rows, title=TITLE))
    push(class_view, request, Client(teaching.url, TOKEN, teaching.said.append), teaching.said.append)
    assert teaching.on_canvas["ada"] == 20.0


# --- what was decided on Canvas -------------------------------------------------------------------------------------


def test_a_grade_given_by_hand_since_stays_and_is_named(teaching: Teaching) -> None:
    teaching.push()
    teaching.state.by_hand("ada", 19)
    teaching.scores |= {"ada": 12, "bob": 13}
    report = teaching.push()
    assert teaching.on_canvas["ada"] == 19
    assert teaching.on_canvas["bob"] == 13
    assert len(teaching.state.comments("ada")) == 1
    line = "kept       ada: 19 on Canvas by hand (20 was sent), 12 here; --replace ada puts 12 there"
    assert line in messages.text(report)
    assert messages.is_open(report)
    report = teaching.push(replace=("ada",))
    assert teaching.on_canvas["ada"] == 12
    assert "lowered    ada: 19 -> 12, instead of what was given by hand, with a comment" in messages.text(report)
    assert not messages.is_open(report)


@pytest.mark.parametrize("how", ["before the first push", "an excuse", "cleared"])
def test_whatever_somebody_decided_there_stays(teaching: Teaching, how: str) -> None:
    if how == "before the first push":
        teaching.state.by_hand("ada", 3)
    else:
        teaching.push()
        teaching.state.by_hand("ada", None, excused=how == "an excuse")
    there = replace(teaching.state.of("ada"))
    report = teaching.push()
    assert kinds(report)["ada"] == "by hand"
    assert teaching.state.of("ada").score == there.score
    assert teaching.state.of("ada").excused == there.excused
    teaching.push(replace=("all",))
    assert teaching.on_canvas["ada"] == 20
    assert not teaching.state.of("ada").excused


def test_what_is_changed_there_while_parts_are_sent_stays(teaching: Teaching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradebook.plugins.canvas_push.push._PART", 2)
    teaching.state.after_update = lambda: teaching.state.by_hand("zoe", 1)
    report = teaching.push()
    assert teaching.on_canvas["zoe"] == 1
    assert [change.target.student for change in report.left] == ["zoe"]


def test_the_zero_that_canvas_gives_for_missing_work_is_nobodys_decision(teaching: Teaching) -> None:
    records = teaching.state.of("ada")
    records.score, records.grader_id = 0.0, None
    assert kinds(teaching.push())["ada"] == "raised"
    assert teaching.on_canvas["ada"] == 20


def test_a_comment_that_was_deleted_there_does_not_come_back_and_a_teachers_own_is_none_of_ours(
    teaching: Teaching,
) -> None:
    teaching.push()
    teaching.state.of("ada").comments.clear()
    teaching.state.of("bob").comments.append({"id": 2, "author_id": canvas_server.TEACHER, "comment": "Well done!"})
    teaching.push()
    assert teaching.state.comments("ada") == []
    assert len(teaching.state.comments("bob")) == 2


def test_lateness_that_canvas_deducts_as_well_is_named(teaching: Teaching) -> None:
    teaching.push()
    teaching.state.of("eve").deducted = 2.0
    report = teaching.push()
    assert set(kinds(report).values()) == {"same"}  # the grade that was entered is the one that was sent
    assert "switch its late policy off: eve" in messages.text(report)


# --- being stopped --------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize("canvas_has_begun", [True, False])
def test_stopped_before_the_answer_nothing_is_sent_twice(teaching: Teaching, canvas_has_begun: bool) -> None:
    def cut_off() -> None:
        if canvas_has_begun:
            teaching.state.run_jobs()
        raise Stopped

    teaching.state.after_update = cut_off
    with pytest.raises(PushError, match="broke off while grades were sent; give the same command again"):
        teaching.push()
    teaching.state.after_update = None
    original = teaching.sleep

    def sleep(seconds: float) -> None:
        original(seconds)
        teaching.state.run_jobs()  # Canvas gets to it while we wait

    teaching.sleep = sleep  # type: ignore[method-assign]
    teaching.push()
    assert teaching.updates == 1
    assert set(teaching.on_canvas.values()) == {20.0}
    assert all(len(teaching.state.comments(name)) == 1 for name in NAMES)


def test_what_never_arrived_is_sent_again_after_a_while(teaching: Teaching) -> None:
    posts = 0

    def lost(handler: Any) -> bool:
        nonlocal posts
        if handler.command == "POST" and posts == 0:
            posts += 1
            return canvas_server.cut_off(handler)
        return True

    teaching.state.answers = [lost] * 50
    with pytest.raises(PushError, match="give the same command again"):
        teaching.push()
    assert teaching.on_canvas["ada"] is None
    teaching.push()
    assert sum(teaching.slept) >= 120
    assert set(teaching.on_canvas.values()) == {20.0}
    assert all(len(teaching.state.comments(name)) == 1 for name in NAMES)


def test_stopped_while_canvas_is_at_it_the_next_run_waits_for_that(teaching: Teaching) -> None:
    teaching.state.looks = 3

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    original = teaching.sleep
    teaching.sleep = stop  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        teaching.push()
    assert teaching.on_canvas["ada"] is None
    teaching.sleep = original  # type: ignore[method-assign]
    report = teaching.push()
    assert "an earlier run was stopped while it sent; looking what has arrived ..." in teaching.said
    assert teaching.updates == 1
    assert set(kinds(report).values()) == {"same"}
    assert all(len(teaching.state.comments(name)) == 1 for name in NAMES)


def test_two_at_a_time_are_not_let_in(teaching: Teaching) -> None:
    refused = []

    def meanwhile() -> None:
        try:
            teaching.push()
        except PushError as error:
            refused.append(str(error))

    teaching.state.after_update = meanwhile
    teaching.push()
    assert refused == ["another gpulabs export canvas --push is at work on this class; wait for it"]
    assert teaching.updates == 1


def test_a_job_that_breaks_down_is_told_and_the_rest_goes_with_the_next_run(teaching: Teaching) -> None:
    teaching.state.breaks = "Job failed on the way"
    report = teaching.push()
    assert teaching.on_canvas["ada"] == 20
    assert teaching.on_canvas["bob"] is None
    assert "Canvas says: Job failed on the way" in messages.text(report)
    assert "not there after all: bob, eve, mia, zoe; give the same command again" in messages.text(report)
    assert messages.is_open(report)
    teaching.state.breaks = ""
    teaching.push()
    assert set(teaching.on_canvas.values()) == {20.0}
    assert all(len(teaching.state.comments(name)) == 1 for name in NAMES)


def test_a_damaged_memory_is_named(teaching: Teaching) -> None:
    teaching.push()
    (file,) = (teaching.folder / "canvas").glob("*.json")
    file.write_text('{"students": 3}')
    with pytest.raises(PushError, match=r"is damaged .* move it away"):
        teaching.push()


# --- who is who -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        lambda name: {"Student": name, "ID": str(100 + NAMES.index(name)), "SIS Login ID": "", "Section": ""},
        lambda name: {"Student": name, "SIS User ID": f"S{NAMES.index(name)}"},
        lambda name: {"Full name": name, "Email address": f"{name.upper()}@uni.edu"},
        lambda name: {"Username": name},
    ],
    ids=["the number of Canvas", "SIS ID", "address", "login"],
)
def test_students_are_found_by_any_identifier(teaching: Teaching, columns: Callable[[str], dict[str, str]]) -> None:
    teaching.columns = columns
    teaching.push()
    assert set(teaching.on_canvas.values()) == {20.0}


def test_another_platforms_number_is_no_number_of_canvas(teaching: Teaching) -> None:
    teaching.columns = lambda name: {"Full name": name, "ID": "101"}  # bob's number on Canvas
    report = teaching.push()
    assert set(teaching.on_canvas.values()) == {20.0}  # by their logins
    assert report.unknown == ()


@pytest.mark.parametrize(
    "columns", [lambda name: {"SIS User ID": f"S{NAMES.index(name)}"}, lambda name: {"SIS Login ID": name}]
)
def test_who_may_not_list_sis_data_looks_students_up(
    teaching: Teaching, columns: Callable[[str], dict[str, str]]
) -> None:
    teaching.columns, teaching.state.sees_sis = columns, False
    teaching.push()
    assert set(teaching.on_canvas.values()) == {20.0}
    assert any("sis_user_id:S0" in request or "sis_login_id:ada" in request for request in teaching.state.requests)


def test_who_is_not_in_the_course_and_who_has_nothing_here_is_named(teaching: Teaching) -> None:
    teaching.scores = {"ada": 20, "nobody": 15}
    text = messages.text(report := teaching.push())
    assert "not in this course, or not distinguishable from others: nobody" in text
    assert "in this course, without a grade here: Bob, Eve, Mia, Zoe" in text
    assert messages.is_open(report)
    assert teaching.on_canvas == {**dict.fromkeys(NAMES), "ada": 20.0}


def test_whoever_is_in_no_roster_is_sent_nothing_as_in_the_files(teaching: Teaching) -> None:
    teaching.columns = lambda name: {} if name == "bob" else {"SIS Login ID": name}
    teaching.push()
    assert teaching.on_canvas["bob"] is None
    assert teaching.on_canvas["ada"] == 20


def test_two_students_here_are_never_one_there(teaching: Teaching) -> None:
    teaching.columns = lambda name: {"SIS Login ID": "ada"} if name == "bob" else {"SIS Login ID": name}
    with pytest.raises(PushError, match="bob and ada are one student on Canvas"):
        teaching.push()
    assert teaching.updates == 0


def test_identifiers_of_two_students_there_are_nobodys(teaching: Teaching) -> None:
    """A login that was given to somebody else since, and a name on GitHub that is another student's login."""
    teaching.scores = {"ada": 20, "bob": 19, "eve": 18}
    teaching.columns = lambda name: {
        "ada": {"SIS Login ID": "mia", "Email address": "ada@uni.edu"},
        "bob": {"username": "bob", "email": "eve@uni.example"},
        "eve": {"username": "zoe", "Email": "eve@uni.edu"},
    }[name]
    text = messages.text(teaching.push())
    assert "from others: ada (there 'mia' is Mia, 'ada@uni.edu' is Ada), bob" in text
    assert teaching.on_canvas == {**dict.fromkeys(NAMES), "eve": 18.0}


def test_one_section_only(teaching: Teaching) -> None:
    teaching.push(section="Friday")
    assert teaching.on_canvas == {"ada": None, "bob": 20.0, "eve": None, "mia": 20.0, "zoe": None}
    with pytest.raises(PushError, match=r"0 sections are called so; there are 'Monday' \(31\), 'Friday' \(32\)"):
        teaching.push(section="Sunday")


def test_a_student_without_a_submission_there_is_named(teaching: Teaching) -> None:
    del teaching.state.records[100]  # it is assigned to others only
    report = teaching.push()
    assert kinds(report)["ada"] == "not there"
    assert messages.is_open(report)


# --- what cannot be sent to -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"published": False}, "is not published"),
        ({"grading_type": "pass_fail"}, "is graded by 'pass_fail'"),
        ({"points_possible": 100.0}, "has 100 points on Canvas and the class 20"),
        ({"points_possible": None}, "has no points on Canvas"),
        ({"moderated_grading": True, "grades_published": False}, "is moderated"),
        ({"anonymize_students": True}, "hides from you on Canvas who is who"),
    ],
)
def test_an_assignment_where_grades_would_mean_something_else_is_refused(
    teaching: Teaching, change: dict[str, Any], message: str
) -> None:
    teaching.state.assignments[0] |= change
    with pytest.raises(PushError, match=message):
        teaching.push()
    assert teaching.updates == 0


def test_the_assignment_by_number_and_by_name(teaching: Teaching) -> None:
    teaching.push(assignment="4711")
    with pytest.raises(PushError, match="no assignment is called 'Lab 9'; there are 'GPU labs', 'Essay'"):
        teaching.push(assignment="Lab 9")
    with pytest.raises(PushError, match="has no assignment 9"):
        teaching.push(assignment="9")
    teaching.state.assignments.append({**ASSIGNMENT, "id": 4712})
    with pytest.raises(PushError, match="name one by its number, of 4711, 4712"):
        teaching.push()


def test_a_course_by_its_sis_id_and_none(teaching: Teaching) -> None:
    teaching.push(course="sis_course_id:CS-101")
    with pytest.raises(PushError, match="there is no course 43"):
        teaching.push(course="43")
    with pytest.raises(PushError, match="expected the number in its address"):
        teaching.push(course="../users")


def test_a_group_that_canvas_grades_as_one(teaching: Teaching) -> None:
    teaching.state.assignments[0] |= {"group_category_id": 5, "grade_group_students_individually": False}
    teaching.state.students[0].group = teaching.state.students[1].group = 9
    teaching.push()
    assert set(teaching.on_canvas.values()) == {20.0}
    teaching.scores["bob"] = 18  # late, and ada is not
    with pytest.raises(PushError, match="grades the group Team 9 as one, but ada and bob have different grades"):
        teaching.push()
    assert teaching.on_canvas["ada"] == 20


def test_who_is_held_back_gets_nothing_and_no_groups_grade(teaching: Teaching) -> None:
    teaching.held_back, teaching.excused = {"bob", "eve"}, {"eve", "mia"}
    teaching.push()
    assert (teaching.on_canvas["ada"], teaching.on_canvas["bob"]) == (20, None)
    assert (teaching.state.of("eve").excused, teaching.state.of("mia").excused) == (False, True)
    teaching.scores["ada"] = 19
    teaching.state.assignments[0] |= {"group_category_id": 5, "grade_group_students_individually": False}
    teaching.state.students[0].group = teaching.state.students[1].group = 9
    with pytest.raises(PushError, match="grades the group Team 9 as one, and bob in it is held back: hold back ada"):
        teaching.push()
    assert (teaching.on_canvas["ada"], teaching.on_canvas["bob"]) == (20, None)


def test_hidden_grades_are_told(teaching: Teaching) -> None:
    teaching.state.assignments[0] |= {"post_manually": True}
    assert "students see nothing of this until you post grades" in messages.text(teaching.push())


def test_replacing_for_somebody_who_is_not_sent_is_an_error(teaching: Teaching) -> None:
    with pytest.raises(PushError, match="--replace adda: no such student"):
        teaching.push(replace=("adda",))


def test_a_teacher_who_may_not_grade_is_told(teaching: Teaching) -> None:
    teaching.state.may_grade = False
    with pytest.raises(PushError, match=r"does not let the owner of this token do that .*not authorized"):
        teaching.push()
