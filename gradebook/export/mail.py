"""Feedback by mail: what each student would get, sending it through an SMTP server, and what was sent already.

`mail/sent.jsonl` next to the gradebook has a line before each message and one after it. So a run that is stopped goes
on, a student gets the same feedback once, and of a message that was under way when the machine went down the
instructor hears. Not for which feedback that is (`feedback.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import smtplib
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import make_msgid
from pathlib import Path
from typing import Literal

from gradebook.export import feedback
from gradebook.export.view import Line, View
from gradebook.text_files import lock
from gradebox.report.document import points

FOLDER, SENT = "mail", "sent.jsonl"
_ADDRESSES = ("Email address", "Email", "email")
_SECONDS = 60
_CLOSING = 421
"""SMTP's answer of a server that ends the connection, such as after too many letters in an hour."""
State = Literal["new", "changed", "moved", "sent", "unknown"]


class MailError(ValueError):
    """Feedback cannot be mailed; the message is one line that says what to do."""


@dataclass(frozen=True)
class Server:
    """Where mail is handed over."""

    host: str
    port: int
    sender: str
    login: str = ""
    password: str = ""

    @property
    def is_local(self) -> bool:
        return self.host in ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Letter:
    """What one student gets."""

    student: str
    address: str
    subject: str
    text: str
    page: bytes
    state: State
    """`changed`: another feedback was sent last; `moved`: this one was, to another address; `unknown`: this one may
    have been sent when a run was stopped."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode() + b"\0" + self.page).hexdigest()


def letters(view: View, folder: Path, subject: str = "") -> tuple[list[Letter], dict[str, str]]:
    """A letter for every student of the roster, and why others get none, by key.

    Args:
        view: the class.
        folder: that of the class.
        subject: of all of them; empty: the class's title.

    Raises:
        MailError: the list of what was sent cannot be read.
    """
    if not subject.isprintable():
        raise MailError(f"--subject {subject!r} must be one line")
    before = _history(folder)
    lines = [line for line in view.lines if line not in view.strangers]
    shared = Counter(address.casefold() for line in lines if (address := _address(line)))
    made: list[Letter] = []
    left_out = {line.student: "is not in the roster" for line in view.strangers}
    for line in lines:
        address = _address(line)
        if line.is_held_back:
            left_out[line.student] = "is held back"
        elif not line.decided and line.result.status != "excused":
            left_out[line.student] = "has no score yet"
        elif not address:
            left_out[line.student] = "has no address in the roster (a column Email)"
        elif not _is_address(address):
            letters = "" if address.isascii() else ", or has letters before the @ that many servers refuse"
            left_out[line.student] = f"has {address!r}, which is no address{letters}"
        elif shared[address.casefold()] > 1:
            left_out[line.student] = f"shares {address} with another student, who would read this"
        else:
            title = subject or f"{view.result.title}: feedback"
            text = "\n".join(_text(line, view.result.title))
            page = feedback.page(line, view.result.title, contact=view.result.contact).encode()
            letter = Letter(line.student, address, title, text, page, "new")
            made.append(Letter(line.student, address, title, text, page, before.state(letter)))
    return made, left_out


def _text(line: Line, title: str) -> Iterator[str]:
    last, _, first = line.result.name.partition(", ")  # as Canvas has names
    yield f"Hello {f'{first} {last}' if first else last or line.student},"
    yield ""
    if line.result.score is not None:
        yield f"{title}: {points(line.result.score)} of {points(line.most)} points."
        yield ""
    yield from feedback.summary(line)
    yield ""
    yield "The attached page has all of it: open feedback.html in a browser."


def _address(line: Line) -> str:
    cell = next((cell for name in _ADDRESSES if (cell := line.result.columns.get(name, "").strip())), "")
    name, at, domain = cell.rpartition("@")
    with contextlib.suppress(UnicodeError):
        cell = f"{name}{at}{domain.encode('idna').decode()}" if not domain.isascii() else cell
    return cell


def _is_address(text: str) -> bool:
    try:
        return "@" in text and Address(addr_spec=text).addr_spec == text and text.isascii()
    except (ValueError, IndexError, MessageError):
        return False


def send(
    chosen: Sequence[Letter], folder: Path, server: Server, say: Callable[[str], None]
) -> tuple[list[str], dict[str, str]]:
    """Send these letters, one after the other; who got one, and why others did not.

    Raises:
        MailError: the server cannot be used at all; nothing more was sent then.
    """
    sent: list[str] = []
    failed: dict[str, str] = {}
    with lock(folder / FOLDER / ".lock"), _session(server) as session:
        for letter in chosen:
            if letter.state != "sent" and _history(folder).state(letter) == "sent":  # by another run, meanwhile
                continue
            _check_open(session)
            _note(folder, letter, "sending")
            try:
                session.send_message(_message(letter, server.sender))
            except smtplib.SMTPRecipientsRefused as error:
                _note(folder, letter, "refused")
                failed[letter.student] = _said(next(iter(error.recipients.values())))
                continue
            except smtplib.SMTPSenderRefused as error:
                _note(folder, letter, "refused")
                if error.smtp_code == _CLOSING:
                    raise _ended((error.smtp_code, error.smtp_error)) from None
                said = _said((error.smtp_code, error.smtp_error))
                raise MailError(f"the server does not take mail of --sender {server.sender}: {said}") from None
            except smtplib.SMTPResponseException as error:
                _note(folder, letter, "refused")
                if error.smtp_code == _CLOSING:
                    raise _ended((error.smtp_code, error.smtp_error)) from None
                failed[letter.student] = _said((error.smtp_code, error.smtp_error))
                continue
            except (smtplib.SMTPException, OSError) as error:
                raise MailError(
                    f"the connection broke while {letter.student} was under way ({error}); look whether it arrived, "
                    "then give the command again"
                ) from None
            _note(folder, letter, "sent")
            sent.append(letter.student)
            say(f"sent: {letter.student} <{letter.address}>")
    return sent, failed


def _check_open(session: smtplib.SMTP) -> None:
    """Raise MailError if the server has ended the connection, before another letter is under way."""
    try:
        answer = session.noop()
    except (smtplib.SMTPException, OSError):
        answer = (_CLOSING, b"it does not answer")
    if answer[0] == _CLOSING:
        raise _ended(answer)


def _ended(answer: tuple[int, bytes | str]) -> MailError:
    return MailError(
        f"the server takes no more letters now ({_said(answer)}). Give the same command later: it goes on, and nobody "
        "gets the same twice"
    )


@contextlib.contextmanager
def _session(server: Server) -> Iterator[smtplib.SMTP]:
    """A connection that is encrypted wherever it leaves this machine."""
    context = ssl.create_default_context()
    try:
        if server.port == 465:
            session: smtplib.SMTP = smtplib.SMTP_SSL(server.host, server.port, timeout=_SECONDS, context=context)
        else:
            session = smtplib.SMTP(server.host, server.port, timeout=_SECONDS)
            session.ehlo()
            # A server on this machine needs no encryption, but may take a password only with it.
            if not server.is_local or (server.login and session.has_extn("starttls")):
                session.starttls(context=context)
        if server.login:
            session.login(server.login, server.password)
    except smtplib.SMTPAuthenticationError as error:
        said = _said((error.smtp_code, error.smtp_error))
        raise MailError(f"{server.host} does not take the login {server.login!r} with this password: {said}") from None
    except ssl.SSLCertVerificationError as error:
        raise MailError(
            f"this machine does not trust the certificate of {server.host}: {error.verify_message}. If it is the "
            "department's own, name its file in the variable SSL_CERT_FILE"
        ) from None
    except smtplib.SMTPNotSupportedError:
        raise MailError(f"{server.host} offers no encryption, and feedback is not sent without") from None
    except (smtplib.SMTPException, OSError) as error:
        raise MailError(
            f"{server.host}:{server.port} cannot be used: {error}. Look at --server: host and "
            "port, mostly 587 or 465; or ask whether this network may send mail"
        ) from None
    try:
        yield session
    finally:
        with contextlib.suppress(smtplib.SMTPException, OSError):
            session.quit()


def _message(letter: Letter, sender: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = sender, letter.address, letter.subject
    message["Date"] = datetime.now(UTC)
    message["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2].rstrip(">") or "localhost")
    message.set_content(letter.text)
    message.add_attachment(letter.page, maintype="text", subtype="html", filename="feedback.html")
    return message


def _said(answer: tuple[int, bytes | str]) -> str:
    code, text = answer
    return f"{code} {text.decode('utf-8', 'replace') if isinstance(text, bytes) else text}"


@dataclass(frozen=True)
class _History:
    last: dict[str, tuple[str, str]]
    """By student: the digest of the last letter, and what became of it."""
    sent: dict[str, tuple[str, str]]
    """By student: the digest of the last letter that was sent, and where to."""

    def state(self, letter: Letter) -> State:
        _, event = self.last.get(letter.student, ("", ""))
        digest, address = self.sent.get(letter.student, ("", ""))
        if digest == letter.digest and event != "sending":
            return "sent" if address.casefold() == letter.address.casefold() else "moved"
        if event == "sending":
            return "unknown"
        return "changed" if digest else "new"


def _history(folder: Path) -> _History:
    path = folder / FOLDER / SENT
    last: dict[str, tuple[str, str]] = {}
    sent: dict[str, tuple[str, str]] = {}
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
        for row in filter(None, lines):
            if not row.endswith(b"}"):
                continue  # the line that was being written when the machine went down: the one before it counts
            event = json.loads(row)
            last[event["student"]] = (event["digest"], event["event"])
            if event["event"] == "sent":
                sent[event["student"]] = (event["digest"], event["address"])
    except (OSError, ValueError, KeyError, TypeError):
        raise MailError(f"{path}, which says who has got what, cannot be read: put it in order first") from None
    return _History(last, sent)


def _note(folder: Path, letter: Letter, event: str) -> None:
    """Add a line to the history, on disk when this returns."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    row = {"at": now, "student": letter.student, "address": letter.address, "digest": letter.digest, "event": event}
    path = folder / FOLDER / SENT
    is_cut_off = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if is_cut_off else "") + json.dumps(row, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
