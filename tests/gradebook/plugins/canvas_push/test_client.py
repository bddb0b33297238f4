"""Whatever goes wrong on the way to Canvas is waited for or told in one line, and the token stays where it belongs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from gradebook.plugins.canvas_push.client import Client, NotThere, PushError
from tests.gradebook.plugins.canvas_push import canvas_server
from tests.gradebook.plugins.canvas_push.canvas_server import TOKEN, CanvasState, Student, StudentRecord, canvas


class Way:
    """A client and what it said and waited for."""

    def __init__(self, url: str, token: str = TOKEN, given: str = "") -> None:
        self.said: list[str] = []
        self.slept: list[float] = []
        self.client = Client(url, token, self.said.append, self.slept.append, given)


@pytest.fixture
def state() -> CanvasState:
    students = [Student(100 + number, f"Student {number}", f"S{number}", f"login{number}") for number in range(5)]
    assignments = [{"id": 4711, "name": "Lab", "points_possible": 20.0, "published": True}]
    made = CanvasState(students=students, assignments=assignments)
    made.records = {student.id: StudentRecord() for student in students}
    return made


@pytest.fixture
def url(state: CanvasState) -> Iterator[str]:
    with canvas(state) as address:
        yield address


USERS = ("courses/42/users", [("enrollment_type[]", "student")])
UPDATE = ("courses/42/assignments/4711/submissions/update_grades", [("grade_data[100][posted_grade]", "7")])


def test_a_list_of_several_pages_is_whole(url: str, state: CanvasState) -> None:
    assert [user["id"] for user in Way(url).client.pages(*USERS)] == [100, 101, 102, 103, 104]
    assert len(state.requests) == 3


@pytest.mark.parametrize("answer", [canvas_server.throttled, canvas_server.too_many])
def test_throttling_is_waited_for_also_where_something_is_changed(
    url: str, state: CanvasState, answer: Callable[[BaseHTTPRequestHandler], bool]
) -> None:
    state.answers = [answer] * 3
    way = Way(url)
    assert way.client.post(*UPDATE)["workflow_state"] == "queued"
    assert len(state.jobs) == 1
    assert len(way.slept) == 3
    assert way.slept == ([2, 4, 8] if answer is canvas_server.throttled else [17, 17, 17])
    assert "asks to go slower; asking again in" in way.said[0]


def test_throttling_without_an_end_is_told(url: str, state: CanvasState) -> None:
    state.answers = [canvas_server.throttled] * 100
    way = Way(url)
    with pytest.raises(PushError, match=r"asks to go slower, for 1\d minutes; give the same command later"):
        way.client.get("users/self")
    assert sum(way.slept) <= 900


@pytest.mark.parametrize("answer", [canvas_server.trouble, canvas_server.cut_off])
def test_trouble_is_waited_for_where_nothing_is_changed_and_never_asked_twice_where_something_is(
    url: str, state: CanvasState, answer: Callable[[BaseHTTPRequestHandler], bool]
) -> None:
    state.answers = [answer] * 2
    assert Way(url).client.get("users/self")["id"] == canvas_server.TEACHER
    state.answers, state.requests = [answer], []
    with pytest.raises(PushError, match="give the same command again: it looks first what has arrived"):
        Way(url).client.post(*UPDATE)
    assert len(state.requests) == 1


def test_a_wrong_token_a_wrong_place_and_a_missing_right_are_told_apart(url: str, state: CanvasState) -> None:
    with pytest.raises(PushError, match="does not know the token, or it has expired"):
        Way(url, "another").client.get("users/self")
    with pytest.raises(NotThere, match="Canvas has nothing at /api/v1/courses/42/assignments/9"):
        Way(url).client.get("courses/42/assignments/9")
    state.may_grade = False
    with pytest.raises(PushError, match="does not let the owner of this token do that"):
        Way(url).client.post(*UPDATE)


def _answers(status: int, data: Any, headers: dict[str, str]) -> Callable[[BaseHTTPRequestHandler], bool]:
    def answer(handler: Any) -> bool:
        handler.reply(status, data, headers)
        return False

    return answer


def test_the_token_goes_to_no_other_address(url: str, state: CanvasState) -> None:
    elsewhere = CanvasState()
    with canvas(elsewhere) as other:
        state.answers = [_answers(200, [{"id": 1}], {"Link": f'<{other}/api/v1/x?page=2>; rel="next"'})]
        with pytest.raises(PushError, match="the token does not go there"):
            list(Way(url).client.pages(*USERS))
        state.answers = [_answers(302, "", {"Location": f"{other}/login"})]
        with pytest.raises(PushError, match="name your Canvas's own address with --url"):
            Way(url).client.get("users/self")
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://canvas.example.edu", "anybody on the way could read the token; write https://canvas.example.edu"),
        ("ftp://canvas.example.edu", "is no address of a Canvas"),
        ("https://me:secret@canvas.example.edu", "is no address of a Canvas"),
        ("https://", "is no address of a Canvas"),
        ("https:/canvas.example.edu", "is no address of a Canvas"),
        ("https://canvas.example.edu:port", "is no address of a Canvas"),
        ("https://[canvas", "is no address of a Canvas"),
        ("my canvas", r"'my canvas' \(--url\) is no address of a Canvas"),
    ],
)
def test_addresses_that_are_none(address: str, message: str) -> None:
    with pytest.raises(PushError, match=message):
        Client(address, TOKEN, print, given="--url")


@pytest.mark.parametrize("way", ["http://", ""])
def test_where_nothing_listens_the_first_contact_fails_at_once(way: str) -> None:
    with socket.socket() as taken:  # bound, so that nobody else gets it, and not listening
        taken.bind(("127.0.0.1", 0))
        route = Way(f"{way}127.0.0.1:{taken.getsockname()[1]}", given="canvas_url in class.toml")
        with pytest.raises(PushError, match=r"\(canvas_url in class.toml\) cannot be reached: nothing listens there"):
            route.client.get("users/self")
    assert not route.slept


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("canvas.invalid", r"https://canvas.invalid \(--url\) cannot be reached: no host .* 'canvas.invalid'"),
        ("https://canvas..edu", r"https://canvas..edu \(--url\) cannot be reached: .*; correct the address"),
    ],
)
def test_a_host_that_there_is_not_is_told_at_once(address: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    route = Way(address, given="--url")
    with pytest.raises(PushError, match=message):
        route.client.get("users/self")
    assert not route.slept


def test_a_canvas_that_goes_away_during_a_run_is_waited_for_by_name_cause_and_end(state: CanvasState) -> None:
    with canvas(state) as address:
        route = Way(address)
        route.client.get("users/self")
    route.client._session.close()  # the connection of before
    with pytest.raises(PushError, match=r"does not answer \(nothing listens there\), for 1\d minutes"):
        route.client.get("users/self")
    assert route.said[0] == (
        f"{address} does not answer (nothing listens there); asking again in 2 s, and giving up after 15 minutes of "
        "waiting"
    )


def test_what_speaks_no_https_is_told(url: str) -> None:
    with pytest.raises(PushError, match="does not speak https as it should"):
        Way(url.replace("http://", "https://")).client.get("users/self")


def test_an_address_may_be_written_as_it_is_spoken_or_copied_from_a_page() -> None:
    assert Client("canvas.example.edu", TOKEN, print).origin == "https://canvas.example.edu"
    assert Client("https://canvas.example.edu/courses/42", TOKEN, print).origin == "https://canvas.example.edu"


def test_what_is_no_canvas_is_told(url: str, state: CanvasState) -> None:
    state.answers = [_answers(200, "<html>Welcome</html>", {})]
    with pytest.raises(PushError, match="does not answer as Canvas does; is this its address"):
        Way(url).client.get("users/self")
    state.answers = [_answers(200, {"id": 1}, {})]
    with pytest.raises(PushError, match="is no list"):
        list(Way(url).client.pages(*USERS))


def test_the_token_stands_in_no_log_and_a_netrc_does_not_replace_it(
    url: str, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("urllib3", "urllib3.connectionpool", "requests"):  # which another test's library may have silenced
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
        caplog.set_level(logging.DEBUG, logger=name)  # the client of Kubernetes lets warnings through alone
    with caplog.at_level(logging.DEBUG):
        Way(url).client.get("users/self")
    assert caplog.records
    assert TOKEN not in caplog.text


def test_another_programs_library_gets_along_with_this_canvas(url: str, state: CanvasState) -> None:
    """So what we hold our own client against is no Canvas of our imagination alone."""
    canvasapi = pytest.importorskip("canvasapi", reason="canvasapi is not installed: part of the extra dev")
    with pytest.warns(UserWarning, match="HTTP"):
        course = canvasapi.Canvas(url, TOKEN).get_course(42)
    people = list(course.get_users(enrollment_type=["student"], include=["enrollments"]))
    assert [person.login_id for person in people] == [f"login{number}" for number in range(5)]
    assert [section.name for section in course.get_sections()] == ["Monday", "Friday"]
    assert course.get_user("S3", "sis_user_id").id == 103
    assignment = course.get_assignment(4711)
    assignment.course_id = 42
    progress = assignment.submissions_bulk_update(
        grade_data={"101": {"posted_grade": "7.5", "text_comment": "fine"}, "sis_user_id:S2": {"excuse": True}}
    )
    while progress.workflow_state not in ("completed", "failed"):
        progress = progress.query()
    assert progress.workflow_state == "completed"
    submissions = {
        submission.user_id: submission for submission in assignment.get_submissions(include=["submission_comments"])
    }
    assert submissions[101].entered_score == 7.5
    assert submissions[101].submission_comments[0]["comment"] == "fine"
    assert submissions[102].excused
    with pytest.warns(UserWarning, match="HTTP"):
        stranger = canvasapi.Canvas(url, "wrong")
    with pytest.raises(canvasapi.exceptions.InvalidAccessToken):
        stranger.get_current_user()
