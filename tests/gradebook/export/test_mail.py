"""Feedback by mail: shown first, sent once to each student, and gone on with after a stop."""

from __future__ import annotations

import email
import email.policy
import socketserver
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from grader.cli import app
from tests.gradebook.conftest import SmallClass

ROSTER = """student,name,Email
ada,Ada Lovelace,ada@uni.example
bob,"Ross, Bob",bob@uni.example
cat,Cat C,family@uni.example
dan,Dan D,Family@uni.example
eve,Eve E,
fay,Fay F,no address
ian,Ian I,ian@@uni.example
hal,Hal H,hal@m\u00fcller.example
"""


class PostOffice(socketserver.ThreadingTCPServer):
    """An SMTP server that keeps what it gets; `refused` addresses it does not take, and it may hang up on one."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Counter)
        self.letters: list[tuple[str, EmailMessage]] = []
        self.refused: set[str] = set()
        self.hangs_up_on = ""
        self.senders = True
        """Whether it takes mail of anybody."""
        self.said: list[str] = []
        self.most = 1000
        """So many letters it takes until it closes."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def to(self, student: str) -> list[EmailMessage]:
        return [letter for address, letter in self.letters if address.startswith(f"{student}@")]


class Counter(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        office = cast(PostOffice, self.server)
        self.answer("220 hello")
        to = ""
        while line := self.rfile.readline().decode().strip():
            verb = line[:4].upper()
            office.said.append(verb)
            if verb == "EHLO":
                self.answer("250-hello")
                self.answer("250 STARTTLS")
            elif verb == "STAR":
                self.answer("454 not now")
            elif verb == "MAIL" and not office.senders:
                self.answer("553 sender rejected: not owned by user gpu")
            elif verb == "MAIL" and len(office.letters) >= office.most:
                self.answer("421 too many letters")
                return
            elif verb == "RCPT":
                to = line.partition("<")[2].partition(">")[0]
                self.answer("550 no such user" if to in office.refused else "250 ok")
            elif verb == "DATA":
                self.answer("354 go on")
                data = b""
                while (row := self.rfile.readline()) != b".\r\n":
                    data += row[1:] if row.startswith(b".") else row
                if to == office.hangs_up_on:
                    return
                message = email.message_from_bytes(data, policy=email.policy.default)
                office.letters.append((to, cast(EmailMessage, message)))
                self.answer("250 taken")
            elif verb == "QUIT":
                self.answer("221 bye")
                return
            else:
                self.answer("250 ok")

    def answer(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@pytest.fixture
def office() -> Iterator[PostOffice]:
    with PostOffice() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def folder(small_class: SmallClass) -> Path:
    for student in ("ada", "bob", "cat", "dan", "eve", "fay", "gus", "hal", "ian"):
        small_class.hands_in(student)
    roster = small_class.submissions.parent / "roster.csv"
    roster.write_text(ROSTER)
    small_class.grade(roster=roster)
    return small_class.out


def mail(folder: Path, office: PostOffice, *more: str, code: int = 3) -> str:
    arguments = ["mail", str(folder), "--server", office.address, "--sender", "gpu@uni.example", *more]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    return done.output


def test_it_is_shown_then_sent_and_sent_once(folder: Path, office: PostOffice) -> None:
    shown = mail(folder, office)
    assert "ada <ada@uni.example> would get: submissions: feedback" in shown
    assert "Hello Ada Lovelace," in shown
    assert "not to cat: shares family@uni.example with another student, who would read this" in shown
    assert "not to dan: shares Family@uni.example" in shown
    assert "not to eve: has no address in the roster" in shown
    assert "not to gus: is not in the roster" in shown
    assert "not to fay: has 'no address', which is no address" in shown
    assert "not to ian: has 'ian@@uni.example', which is no address" in shown, "and the others are not held up"
    assert "hal <hal@xn--mller-kva.example> would get" in shown
    assert "3 to send; nothing was sent" in shown
    assert office.letters == []
    assert "sent to 3 students" in mail(folder, office, "--send")
    (letter,) = office.to("ada")
    assert letter["Subject"] == "submissions: feedback"
    (page,) = letter.iter_attachments()
    assert page.get_filename() == "feedback.html"
    assert "Ada Lovelace" in page.get_content()
    assert "Bob" not in str(letter)
    assert "sent to 0 students" in mail(folder, office, "--send")
    assert len(office.letters) == 3
    mail(folder, office, "--send", "--only", "Bob Ross", "--again", "bob", code=0)
    assert len(office.to("bob")) == 2
    assert "Hello Bob Ross," in str(office.to("bob")[0])
    assert len(office.to("ada")) == 1


def test_feedback_that_has_changed_is_sent_again(folder: Path, office: PostOffice) -> None:
    mail(folder, office, "--send")
    CliRunner().invoke(app, ["review", str(folder), "--override", "ada", "lab1.memory", "1.5", "asked in person"])
    assert "ada <ada@uni.example> would get again, because it has changed" in mail(folder, office)
    mail(folder, office, "--send")
    assert [len(office.to(student)) for student in ("ada", "bob")] == [2, 1]


def test_feedback_that_changes_back_is_sent_again_and_a_new_address_gets_it(
    folder: Path, office: PostOffice, small_class: SmallClass, tmp_path: Path
) -> None:
    mail(folder, office, "--send")
    override = ("review", str(folder), "--override", "ada", "lab1.memory", "1.5", "asked in person")
    CliRunner().invoke(app, list(override))
    mail(folder, office, "--send")
    (folder / "overrides.toml").unlink()
    assert "ada <ada@uni.example> would get again, because it has changed" in mail(folder, office)
    mail(folder, office, "--send")
    assert len(office.to("ada")) == 3, "the last letter is what counts"
    (tmp_path / "corrected.csv").write_text(ROSTER.replace("bob@uni", "bob@home"))
    small_class.grade(roster=tmp_path / "corrected.csv")
    assert "bob <bob@home.example> would get, now at another address" in mail(folder, office)
    mail(folder, office, "--send")
    assert [address for address, _ in office.letters if address.startswith("bob")] == [
        "bob@uni.example", "bob@home.example",
    ]  # fmt: skip


def test_a_regrade_that_changes_nothing_sends_nothing(
    folder: Path, office: PostOffice, small_class: SmallClass
) -> None:
    mail(folder, office, "--send")
    small_class.grade(roster=small_class.submissions.parent / "roster.csv", regrade=("lab1.memory",))
    assert "0 to send" in mail(folder, office)


def test_the_exit_code_of_one_student_is_about_that_one(folder: Path, office: PostOffice) -> None:
    office.refused = {"ada@uni.example"}
    assert "not to ada: 550" in mail(folder, office, "--send", "--only", "ada", code=3)
    assert "not to" not in mail(folder, office, "--send", "--only", "bob", code=0)


def test_a_connection_that_breaks_is_gone_on_with(folder: Path, office: PostOffice) -> None:
    office.hangs_up_on = "bob@uni.example"
    broken = mail(folder, office, "--send", code=2)
    assert "the connection broke while bob was under way" in broken
    office.hangs_up_on = ""
    after = mail(folder, office, "--send")
    assert "not to bob: may have got it, because a run was stopped at it: --again sends it" in after
    assert (len(office.to("ada")), len(office.to("bob"))) == (1, 0)
    mail(folder, office, "--send", "--again", "bob")
    assert (len(office.to("ada")), len(office.to("bob"))) == (1, 1)
    history = folder / "mail" / "sent.jsonl"
    history.write_bytes(history.read_bytes()[:-9])  # the machine went down within the line
    assert "not to bob: may have got it" in mail(folder, office, "--send")
    mail(folder, office, "--send", "--again", "bob")
    assert "sent to 0 students" in mail(folder, office, "--send")
    assert (len(office.to("ada")), len(office.to("bob"))) == (1, 2)


def test_a_server_that_takes_no_more_is_gone_on_with_later(folder: Path, office: PostOffice) -> None:
    office.most = 1
    said = mail(folder, office, "--send", code=2)
    assert "takes no more letters now (421 too many letters). Give the same command later: it goes on" in said
    office.most = 1000
    assert "may have got" not in mail(folder, office, "--send")
    assert (len(office.to("ada")), len(office.to("bob"))) == (1, 1)


def test_who_is_refused_is_named_and_the_others_get_theirs(folder: Path, office: PostOffice) -> None:
    office.refused = {"ada@uni.example"}
    said = mail(folder, office, "--send")
    assert "not to ada: 550 no such user" in said
    assert [len(office.to(student)) for student in ("ada", "bob")] == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--server", "nowhere", "--sender", "a@b.c"), "--server smtp.uni.example:587"),
        (("--server", "127.0.0.1:1", "--sender", "a@b.c"), "127.0.0.1:1 cannot be used"),
        (("--server", "127.0.0.1:1", "--sender", "a@b.c", "--login", "me"), "put it into the variable SMTP_PASSWORD"),
    ],
)
def test_a_server_that_is_none_is_one_line(folder: Path, options: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["mail", str(folder), "--send", *options])
    assert (done.exit_code, message in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("server", "sender"), [("smtp.x.edu:587", "Ana"), ("smtp.x.edu", "a@b.c"), ("http://smtp.x.edu:25", "a@b.c")]
)
def test_a_server_or_sender_that_is_none_is_said_before_anything_is_sent(
    folder: Path, server: str, sender: str
) -> None:
    done = CliRunner().invoke(app, ["mail", str(folder), "--server", server, "--sender", sender])
    assert done.exit_code == 2
    assert "--sender course@uni.example --server smtp.uni.example:587" in done.output


def test_a_sender_that_the_server_does_not_take_is_said_once(folder: Path, office: PostOffice) -> None:
    office.senders = False
    said = mail(folder, office, "--send", code=2)
    assert "does not take mail of --sender gpu@uni.example: 553 sender rejected: not owned by user gpu" in said
    office.senders = True
    assert "sent to 3 students" in mail(folder, office, "--send"), "nobody counts as served"


def test_a_password_is_encrypted_if_a_server_on_this_machine_can(
    folder: Path, office: PostOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMTP_PASSWORD", "secret")
    assert "not now" in mail(folder, office, "--send", "--login", "gpu", code=2)
    assert "STAR" in office.said
    office.said.clear()
    mail(folder, office, "--send")
    assert "STAR" not in office.said, "there is no password to hide"
