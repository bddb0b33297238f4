"""What could not be fetched says nothing about the work: it is a zero in no export, and older work goes on counting."""

from __future__ import annotations

import csv
import html
import io
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gradebook.export.book import Book
from gradebook.export.reviews import ReviewError
from gradebook.intake import repositories
from gradebook.intake.collect import Intake, Store
from gradebook.intake.roster_files import load
from gradebook.results import ClassResult, StudentResult
from gradebook.settings import GitSettings, Settings
from grader.cli import app
from tests.gradebook.conftest import SmallClass
from tests.gradebook.fakes import fake_engine
from tests.gradebook.intake.test_repositories import Repository, take

GITHUB_OVER_SSH = "echo 'ERROR: Repository not found.' >&2; exit 1 #"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A web server that answers with the status that the path begins with; its address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path.split("/")[1]))
            self.end_headers()
            self.wfile.write(b"<html>log in to the guest network</html>")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def status_of(tmp_path: Path, address: str, *protocols: str) -> tuple[str, str]:
    (tmp_path / "list.csv").write_text(f"student,repository\nada,{address}\n")
    student = take(tmp_path, Settings(git=GitSettings(protocols=protocols)), where="list.csv")
    assert student.content is None
    return student.status, student.reason


@pytest.mark.parametrize(
    ("answer", "status"),
    [(404, "no_repository"), (410, "no_repository"), (401, "could_not_fetch"), (403, "could_not_fetch"),
     (500, "could_not_fetch"), (503, "could_not_fetch"), (200, "no_repository")],
)  # fmt: skip
def test_a_wrong_address_is_told_from_a_server_in_trouble(
    server: str, tmp_path: Path, answer: int, status: str
) -> None:
    assert status_of(tmp_path, f"{server}/{answer}/ada.git", "http")[0] == status


def test_a_repository_that_a_server_does_not_know_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", GITHUB_OVER_SSH)
    status, reason = status_of(tmp_path, "git@server.invalid:ada/labs.git", "ssh")
    assert (status, "Repository not found" in reason) == ("no_repository", True)


@pytest.mark.parametrize(
    "said",
    [
        "ssh: Could not resolve hostname server.invalid: Name or service not known",
        "git@server.invalid: Permission denied (publickey).",
        "Host key verification failed.",
        "ssh: connect to host server.invalid port 22: Connection timed out",
    ],
)
def test_a_way_that_fails_is_no_fault_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", f"echo '{said}' >&2; exit 255 #")
    status, reason = status_of(tmp_path, "git@server.invalid:ada/labs.git", "ssh")
    assert (status, said in reason) == ("could_not_fetch", True)


def test_a_server_that_never_answers_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "_FETCH_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        status, reason = status_of(tmp_path, f"git://127.0.0.1:{silent.getsockname()[1]}/ada", "git")
    assert (status, "did not finish within 1 s" in reason) == ("could_not_fetch", True)


def test_a_server_that_refuses_the_connection(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert status_of(tmp_path, f"git://127.0.0.1:{port}/ada", "git")[0] == "could_not_fetch"


def test_passwords_in_an_address_are_not_shown(server: str, tmp_path: Path) -> None:
    address = f"{server}/404/ada.git".replace("://", "://me:secret@")
    assert "secret" not in status_of(tmp_path, address, "http")[1]


@pytest.mark.parametrize("query", ["private_token=secret", "a=1&access_token=secret", "access_token=secret/"])
def test_nor_are_tokens_behind_its_path(query: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    reason = status_of(tmp_path, f"http://127.0.0.1:{port}/ada.git?{query}", "http")[1]
    assert f"127.0.0.1:{port}/ada.git" in reason
    assert "secret" not in reason


def test_nor_are_they_where_a_list_names_several_repositories_of_one(server: str, tmp_path: Path) -> None:
    address = f"{server}/404/{{}}.git".replace("://", "://me:secret@")
    (tmp_path / "roster.csv").write_text("student,ID\nada,17\n")
    (tmp_path / "list.csv").write_text(f"student,repository\nada,{address.format(1)}\n17,{address.format(2)}\n")
    intake = Intake(Settings(), load(tmp_path / "roster.csv"), Store(tmp_path / "store"), tmp_path / "room", None)
    (student,) = intake.take_all(tmp_path / "list.csv", lambda name: None)
    assert "handed in more than once" in student.reason
    assert "secret" not in student.reason


@pytest.mark.parametrize(
    ("git", "reason"),
    [
        (None, "git is not installed"),
        ("#!/bin/sh\necho 'fatal: write error: No space left on device' >&2; exit 128\n", "No space left"),
        ("#!/bin/sh\nkill -9 $$\n", "SIGKILL"),
    ],
    ids=["no git", "a full disk", "killed"],
)
def test_a_machine_of_ours_that_fails_is_no_fault_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, git: str | None, reason: str
) -> None:
    Repository(tmp_path / "source" / "ada").commit("first", 1)
    (tmp_path / "bin").mkdir()
    if git is not None:
        (tmp_path / "bin" / "git").write_text(git)
        (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    student = take(tmp_path)
    assert (student.status, reason in student.reason) == ("could_not_fetch", True)


# --- in a class -----------------------------------------------------------------------------------------------------


class Listed:
    """A class of repositories in a list."""

    def __init__(self, small: SmallClass, folder: Path) -> None:
        self.small = small
        self.list = folder / "list.csv"
        self.folder = folder
        (folder / "class.toml").write_text('title = "Labs"\n[git]\nprotocols = ["file", "git"]\n')

    def has(self, **addresses: object) -> None:
        self.list.write_text("student,repository\n" + "".join(f"{who},{at}\n" for who, at in addresses.items()))

    def grade(self, **options: object) -> ClassResult:
        return self.small.grade(**{"submissions": self.list, "configuration": self.folder / "class.toml", **options})

    def exported(self, student: str) -> dict[str, str]:
        """Where this student has a score in the exports, by file."""
        exports, scores = self.small.out / "exports", {}
        for name, column in (("grades.csv", "score"), ("canvas.csv", "Labs"), ("moodle-grades.csv", "Labs")):
            for row in csv.DictReader(io.StringIO((exports / name).read_text("utf-8-sig"))):
                if student in row.values() and row[column]:
                    scores[name] = row[column]
        result = exports / "gradescope" / f"{student}.json"
        if result.is_file():
            scores["gradescope"] = str(json.loads(result.read_text())["score"])
        return scores


@pytest.fixture
def listed(small_class: SmallClass, tmp_path: Path) -> Listed:
    return Listed(small_class, tmp_path)


@pytest.fixture
def ada(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "ada")
    repository.commit("first", 1)
    return repository


NOBODY = "git://127.0.0.1:1/ada"


def student_of(result: ClassResult, name: str) -> StudentResult:
    (student,) = [student for student in result.students if student.student == name]
    return student


def test_what_could_not_be_fetched_is_a_zero_in_no_export(listed: Listed, ada: Repository, tmp_path: Path) -> None:
    listed.has(ada=ada.folder, bob=NOBODY, eve=tmp_path / "nothing")
    result = listed.grade()
    assert [(student.student, student.status, student.score is None) for student in result.students] == [
        ("ada", "graded", False),
        ("bob", "could_not_fetch", True),
        ("eve", "no_repository", True),
    ]
    assert len(listed.exported("ada")) == 4
    assert listed.exported("bob") == listed.exported("eve") == {}
    feedback = (listed.small.out / "exports" / "feedback" / "bob.md").read_text()
    assert "could not be fetched" in feedback
    assert "this costs no points" in feedback


def test_the_last_good_content_goes_on_counting_and_it_is_said(listed: Listed, ada: Repository) -> None:
    listed.has(ada=ada.folder)
    before = student_of(listed.grade(), "ada")
    ada.folder.rename(ada.folder.with_name("away"))
    for address in (NOBODY, ada.folder):
        listed.has(ada=address)
        now = student_of(listed.grade(), "ada")
        assert (now.score, now.commit, now.submitted_at) == (before.score, before.commit, before.submitted_at)
        assert now.outdated
        assert before.commit is not None
        assert f"(commit {before.commit[:10]}) count" in now.reason
        assert "; the files that were read on 20" in now.reason
    assert now.reason in (listed.small.out / "exports" / "grades.csv").read_text()
    assert len(listed.small.graded) == 1
    ada.folder.with_name("away").rename(ada.folder)
    assert not student_of(listed.grade(), "ada").outdated


def test_a_person_may_say_that_older_work_counts(listed: Listed, ada: Repository) -> None:
    listed.has(ada=ada.folder)
    listed.grade()
    listed.has(ada=NOBODY)
    listed.grade()
    book = Book.open(listed.small.out)
    assert "ada" in [item.student for item in book.view.open if item.kind == "outdated"]
    book.accept("ada", "handing-in")
    listed.grade()
    assert "outdated" not in [item.kind for item in Book.open(listed.small.out).view.open]


def test_a_person_decides_that_no_repository_is_a_zero(listed: Listed, tmp_path: Path) -> None:
    listed.has(ada=tmp_path / "nothing")
    listed.grade()
    Book.open(listed.small.out).accept("ada", "handing-in")
    Book.open(listed.small.out).export()
    assert set(listed.exported("ada").values()) == {"0", "0.0"}


def test_a_failed_fetch_cannot_be_accepted_as_a_zero(listed: Listed) -> None:
    listed.has(ada=NOBODY)
    listed.grade()
    for student in ("ada", "all"):
        with pytest.raises(ReviewError, match=r"that is no result to accept|nothing is open in handing-in that could"):
            Book.open(listed.small.out).accept(student, "handing-in")
    Book.open(listed.small.out).export()
    assert listed.exported("ada") == {}


# --- in a team ------------------------------------------------------------------------------------------------------


@pytest.fixture
def team(listed: Listed) -> Callable[..., ClassResult]:
    """Grades a class in which ada and bob work together, each with a repository of their own."""
    (listed.folder / "roster.csv").write_text("student,team\nada,blue\nbob,blue\n")

    def grade(**addresses: object) -> ClassResult:
        listed.has(**addresses)
        return listed.grade(roster=listed.folder / "roster.csv")

    return grade


def test_one_address_of_two_students_who_are_no_team_is_named(listed: Listed, ada: Repository) -> None:
    said = io.StringIO()
    console = Console(file=said, width=1000)
    listed.has(ada=ada.folder, bob=ada.folder, cem=NOBODY)
    listed.grade(console=console)
    assert f"ada, bob have one repository in the list, {ada.folder}, and one grade" in said.getvalue()
    said.truncate(0)
    (listed.folder / "roster.csv").write_text("student,team\nada,blue\nbob,blue\n")
    listed.grade(console=console, roster=listed.folder / "roster.csv")
    assert "have one repository" not in said.getvalue(), "they are a team"


@pytest.mark.parametrize(
    ("missing", "problem"),
    [(NOBODY, "it could not be fetched: fatal"), ("nothing", "no repository at nothing: there is no such folder")],
    ids=["out of reach", "not there"],
)
def test_a_repository_that_cannot_be_fetched_is_named_and_costs_the_team_nothing(
    listed: Listed, ada: Repository, team: Callable[..., ClassResult], missing: str, problem: str
) -> None:
    for addresses in ({"ada": ada.folder, "bob": missing}, {"bob": missing, "ada": ada.folder}):
        result = team(**addresses)
        assert [(row.status, row.score is None, row.partly) for row in result.students] == [("graded", False, True)] * 2
        for row in result.students:
            assert row.reason.startswith(f"{missing!r} of bob does not count: {problem}")
            assert len(listed.exported(row.student)) == 4
    for name in ("class.html", "grades.csv", "feedback/ada.md", "feedback/bob.html"):
        text = html.unescape((listed.small.out / "exports" / name).read_text().replace("\\", ""))
        assert f"{missing!r} of bob does not count" in text, name


@pytest.mark.night
def test_a_person_may_say_that_the_others_work_is_the_teams(
    listed: Listed, ada: Repository, team: Callable[..., ClassResult]
) -> None:
    team(ada=ada.folder, bob=NOBODY)
    book = Book.open(listed.small.out)
    assert [(item.student, item.kind) for item in book.view.open if item.criterion == "handing-in"] == [
        ("ada", "partly"), ("bob", "partly"),
    ]  # fmt: skip
    book.accept("all", "handing-in")
    team(ada=ada.folder, bob=f"{NOBODY}/elsewhere")
    assert "handing-in" not in [item.criterion for item in Book.open(listed.small.out).view.open]


@pytest.mark.night
def test_nothing_is_open_once_the_repository_can_be_fetched(ada: Repository, team: Callable[..., ClassResult]) -> None:
    team(ada=ada.folder, bob=NOBODY)
    result = team(ada=ada.folder, bob=ada.folder)
    assert [(student.reason, student.partly) for student in result.students] == [("", False)] * 2


@pytest.mark.night
def test_a_team_of_which_nothing_can_be_graded_has_no_zero_for_what_could_not_be_fetched(
    tmp_path: Path, team: Callable[..., ClassResult]
) -> None:
    Repository(tmp_path / "empty")
    for other, status in (
        (NOBODY, "could_not_fetch"), (tmp_path / "nothing", "no_repository"), (tmp_path / "empty", "refused")
    ):  # fmt: skip
        for student in team(ada=tmp_path / "empty", bob=other).students:
            assert (student.status, student.score is None) == (status, status != "refused")
            assert "has no commits" in student.reason
    assert team(ada=NOBODY, bob=tmp_path / "nothing").students[0].status == "could_not_fetch"


# --- submissions that match nobody ----------------------------------------------------------------------------------


@pytest.fixture
def unmatched(small_class: SmallClass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listed:
    """`adda` handed in, who is not in the roster; `ada`, who is, did not."""
    monkeypatch.setattr("gradebook.cli.classroom._local_engine", lambda: fake_engine)
    small_class.hands_in("adda")
    small_class.hands_in("bob")
    (tmp_path / "roster.csv").write_text("student,name\nada,Ada\nbob,Bob\neve,Eve\n")
    listed = Listed(small_class, tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield listed
    finally:
        signal.signal(signal.SIGTERM, before)


def run(listed: Listed) -> tuple[int, str]:
    arguments = [listed.small.submissions, "--out", listed.small.out, "--roster", listed.folder / "roster.csv"]
    more = ["--lab=1", "--device=vgpu", "--seed=7", "--config", listed.folder / "class.toml"]
    done = CliRunner().invoke(app, ["class", *map(str, [*arguments, *more])])
    return done.exit_code, done.output


def test_zeros_wait_while_somebody_s_work_matches_nobody(unmatched: Listed) -> None:
    code, said = run(unmatched)
    assert code == 3
    assert "adda matches nobody in the roster: it may be theirs" in said
    assert unmatched.exported("ada") == unmatched.exported("eve") == {}
    assert len(unmatched.exported("bob")) == 4


def test_a_person_says_that_the_zeros_stand(unmatched: Listed) -> None:
    run(unmatched)
    book = Book.open(unmatched.small.out)
    book.accept("eve", "handing-in")
    Book.open(unmatched.small.out).export()
    assert (len(unmatched.exported("eve")), unmatched.exported("ada")) == (4, {})
    assert run(unmatched)[0] == 3
    said = Book.open(unmatched.small.out).accept("all", "handing-in")
    assert said == "accepted handing-in of ada"
    assert run(unmatched)[0] == 0
    assert set(unmatched.exported("ada").values()) == {"0", "0.0"}


def test_another_stranger_makes_them_wait_again(unmatched: Listed) -> None:
    run(unmatched)
    Book.open(unmatched.small.out).accept("all", "handing-in")
    unmatched.small.hands_in("eva")
    assert run(unmatched)[0] == 3
    assert unmatched.exported("eve") == {}


def test_who_is_missing_has_a_zero_at_once_where_everybody_else_is_known(unmatched: Listed) -> None:
    (unmatched.small.submissions / "adda").rename(unmatched.small.submissions / "ada")
    code, _ = run(unmatched)
    assert (code, len(unmatched.exported("eve"))) == (0, 4)


def test_checks_are_not_accepted_for_everybody_at_once(unmatched: Listed) -> None:
    run(unmatched)
    with pytest.raises(ReviewError, match="for all students at once only handing-in"):
        Book.open(unmatched.small.out).accept("all", "all")


def flat(text: str) -> str:
    """Without the ends of the terminal's lines."""
    return " ".join(text.split())


def test_what_staff_handed_in_is_left_out_and_named_and_withholds_nothing(
    small_class: SmallClass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradebook.cli.classroom._local_engine", lambda: fake_engine)
    for name in ("gpu-lab1-bob", "gpu-lab1-prof"):
        small_class.hands_in(name)
    (tmp_path / "roster.csv").write_text("username,role\nada,student\nbob,student\nprof,teacher\n")
    code, said = run(Listed(small_class, tmp_path))
    assert code == 0
    assert flat(said).count("prof is staff (teacher) in roster.csv: gpu-lab1-prof is left out") == 1
    assert "not in" not in said
    assert [line.student for line in Book.open(small_class.out).view.lines] == ["ada", "bob"]


def test_canvas_s_test_student_is_left_out_and_their_row_on_canvas_stays(
    small_class: SmallClass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradebook.cli.classroom._local_engine", lambda: fake_engine)
    for name in ("lovelaceada_101_9001_ada", "studenttest_103_9003_x"):
        small_class.hands_in(name)
    rows = f'"Lovelace, Ada",101,S1,ada,A,\n"Student, Test",103,,{"0f" * 20},A,\n'
    (tmp_path / "roster.csv").write_text(f"Student,ID,SIS User ID,SIS Login ID,Section,Lab (99)\n{rows}")
    code, said = run(Listed(small_class, tmp_path))
    assert code == 0
    assert flat(said).count("is the Test Student of Canvas in roster.csv: studenttest_103_9003_x is left out") == 1
    assert [line.student for line in Book.open(small_class.out).view.lines] == ["ada"]
    exported = (small_class.out / "exports" / "canvas.csv").read_text()
    assert "Lovelace, Ada" in exported
    assert "Test" not in exported  # a row of theirs would be imported; without one Canvas keeps what it has
