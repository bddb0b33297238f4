"""`gpulabs export canvas`, as an instructor gives it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gradebook.intake import times
from gradebox.common.texts import is_printable
from grader.cli import app
from tests.gradebook.conftest import SmallClass
from tests.gradebook.plugins.canvas_push.canvas_server import TOKEN, CanvasState, Student, StudentRecord, canvas

SETTINGS = """title = "GPU lab 1"
roster = "roster.csv"
[exports]
canvas_url = "{url}"
canvas_course = 42
"""
ROSTER = """Student,ID,SIS User ID,SIS Login ID,Section,GPU lab 1 (4711)
    Points Possible,,,,,20
Lovelace,101,S1,ada,Monday,
Ross,102,S2,bob,Monday,
"""


@pytest.fixture
def state() -> CanvasState:
    students = [
        Student(101, "Lovelace", "S1", "ada"),
        Student(102, "Ross", "S2", "bob"),
        Student(103, "Third", "S3", "c"),
    ]
    assignments = [{"id": 4711, "name": "Another name there", "points_possible": 20.0, "published": True}]
    made = CanvasState(students=students, assignments=assignments, looks=0)
    made.records = {student.id: StudentRecord() for student in students}
    return made


@pytest.fixture
def url(state: CanvasState) -> Iterator[str]:
    with canvas(state) as address:
        yield address


@pytest.fixture
def folder(url: str, small_class: SmallClass, tmp_path: Path) -> Path:
    small_class.hands_in("ada")
    small_class.hands_in("bob")
    (tmp_path / "class.toml").write_text(SETTINGS.format(url=url))
    (tmp_path / "roster.csv").write_text(ROSTER)
    small_class.grade(configuration=tmp_path / "class.toml")
    return small_class.out


def export(folder: Path, *more: str, token: str = TOKEN) -> Result:
    return CliRunner().invoke(app, ["export", "canvas", str(folder), *more], env={"CANVAS_TOKEN": token})


def test_shown_then_sent_then_nothing_is_left(folder: Path, state: CanvasState) -> None:
    shown = export(folder)
    assert shown.exit_code == 0, shown.output
    assert "Another name there (4711) of GPU computing (42)" in shown.output
    assert "nothing was sent; --push sends this (2 of 2 students)" in shown.output
    assert "in this course, without a grade here: Third" in shown.output
    assert state.of("ada").score is None
    sent = export(folder, "--push")
    assert sent.exit_code == 0, sent.output
    assert "sent: 2 of 2 students" in sent.output
    score = json.loads((folder / "exports" / "gradescope" / "ada.json").read_text())["score"]
    assert state.of("ada").score == score
    assert f"GPU lab 1: {score:g} of 20 points" in state.comments("ada")[0]
    again = export(folder, "--push")
    assert "there was nothing to send" in again.output
    assert len(state.comments("ada")) == 1


def test_canvas_says_who_handed_in_when(folder: Path, state: CanvasState, tmp_path: Path) -> None:
    state.of("ada").submitted_at = "2026-03-28T22:58:00Z"
    state.left.append(Student(999, "Zed", "S9", "zed", "zed@uni.edu", 31))
    state.records[999] = StudentRecord(submitted_at="2026-03-28T22:58:00Z")
    written = export(folder, "--times", str(tmp_path / "times.csv"))
    assert written.exit_code == 0, written.output
    assert 'wrote when 1 student handed in: submitted = "times.csv"' in written.output
    assert "note: 1 handed in and is not in the course any more, so not in times.csv" in written.output
    table = times.load(tmp_path / "times.csv", None, None)
    assert list(table.of.values()) == [datetime(2026, 3, 28, 22, 58, tzinfo=UTC)]
    assert not any("POST" in request or "PUT" in request for request in state.requests)


def test_what_was_given_by_hand_is_left_for_a_person(folder: Path, state: CanvasState) -> None:
    state.by_hand("bob", 1.5)
    kept = export(folder, "--push")
    assert kept.exit_code == 3
    assert "kept       bob: 1.5 on Canvas by hand (nothing was sent from here)" in kept.output
    assert state.of("bob").score == 1.5
    assert export(folder, "--push", "--replace", "bob").exit_code == 0
    assert state.of("bob").score != 1.5


def test_the_token_is_shown_nowhere(folder: Path, state: CanvasState, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    open_to_all = export(folder, "--push", "--token-file", str(file), token="")
    assert open_to_all.exit_code == 2
    assert f"chmod 600 {file}" in open_to_all.output
    file.chmod(0o600)
    sent = export(folder, "--push", "--token-file", str(file), token="")
    assert sent.exit_code == 0, sent.output
    written = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in content for content in written)
    assert TOKEN not in sent.output
    assert not any(TOKEN in request for request in state.requests)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("", "there is no access token in the variable CANVAS_TOKEN; make one in Canvas"),
        ("two words", "holds no access token: it has spaces"),
        ("wrong", "does not know the token, or it has expired"),
    ],
)
def test_a_token_that_is_none(folder: Path, token: str, message: str) -> None:
    refused = export(folder, token=token)
    assert refused.exit_code == 2
    assert message in refused.output
    assert token not in refused.output or not token or token == "wrong"


def test_without_an_address_the_command_says_where_it_goes(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.grade()
    result = export(small_class.out)
    assert result.exit_code == 2
    assert "where to? Say it with --url, or with canvas_url under [exports] in class.toml" in result.output
    assert "Say it with --course" in export(small_class.out, "--url", "https://canvas.example.edu").output


def test_names_from_canvas_are_shown_in_printable_signs(folder: Path, state: CanvasState) -> None:
    state.students[2].name = "\x1b[2J\u202eevil"
    state.assignments[0]["name"] = "Lab\x1b[31m"
    output = export(folder).output
    assert all(is_printable(line) for line in output.splitlines())


def test_where_nothing_listens_the_command_ends_at_once_and_says_where_the_address_stands(
    folder: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:  # bound, so that nobody else gets it, and not listening
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        by_option = export(folder, "--url", nowhere)
    assert by_option.exit_code == 2
    assert f"error: {nowhere} (--url) cannot be reached: nothing listens there" in by_option.output
    assert "asking again" not in by_option.output


def test_a_bad_address_in_class_toml_is_named_with_the_file(
    folder: Path, small_class: SmallClass, tmp_path: Path
) -> None:
    (tmp_path / "class.toml").write_text(SETTINGS.format(url="https://my canvas"))
    small_class.grade(configuration=tmp_path / "class.toml")
    refused = export(folder)
    assert refused.exit_code == 2
    assert f"'https://my canvas' (canvas_url in {tmp_path / 'class.toml'}) is no address" in refused.output
