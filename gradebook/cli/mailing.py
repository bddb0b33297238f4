"""The command `mail`: feedback to students by mail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradebook.cli.echo import echo, note
from gradebook.cli.host import rubric
from gradebook.cli.plugins import fail

if TYPE_CHECKING:
    from gradebook.export.mail import Server

PASSWORD = "SMTP_PASSWORD"
_STATES = {
    "new": "would get", "changed": "would get again, because it has changed",
    "moved": "would get, now at another address", "sent": "has got",
    "unknown": "may have got, because a run was stopped at it; --again sends",
}  # fmt: skip


def mail_feedback(
    folder: Annotated[
        Path, typer.Argument(help="The folder of the class (--out of the command class).", show_default=False)
    ],
    server: Annotated[str, typer.Option(help="The SMTP server, HOST:PORT; 465 is TLS from the beginning.")] = "",
    sender: Annotated[str, typer.Option(help="The address that it comes from.")] = "",
    login: Annotated[str, typer.Option(help=f"Name at the server; the password is in {PASSWORD}.")] = "",
    subject: Annotated[str, typer.Option(help="Of every message (default: the class's title).")] = "",
    only: Annotated[list[str] | None, typer.Option(metavar="STUDENT", help="Only these. Repeatable.")] = None,
    again: Annotated[
        list[str] | None, typer.Option(metavar="STUDENT", help="Also what they may have got already. Repeatable.")
    ] = None,
    really: Annotated[bool, typer.Option("--send", help="Send it. Without: only show who would get what.")] = False,
) -> None:
    """Show who would get their feedback by mail, and send it with --send; the same feedback once to each student.

    May be stopped and given again. Exit codes: 0 nothing is left, 2 it could not be done, 3 somebody did not get it.
    """
    from gradebook.export import mail
    from gradebook.export.book import Book

    try:
        if server or sender:  # not only when it is sent
            _check_server(server, sender)
        book = Book.open(folder)
        if book.changed_settings:
            note(book.changed_settings)
        if (now := rubric()) and (changed := book.changed_course(now)):
            note(changed)
        letters, left_out = mail.letters(book.view, folder, subject)
        named = {key for name in only or [] for key in book.keys(name)}
        repeated = {key for name in again or [] for key in book.keys(name)}
        letters = [letter for letter in letters if not only or letter.student in named]
        open_ = [
            letter for letter in letters if letter.state in ("new", "changed", "moved") or letter.student in repeated
        ]
        if really:
            sent, failed = mail.send(open_, folder, _server(server, sender, login), echo)
            left_out |= failed
        else:
            sent = []
            for letter in letters:
                echo(f"{letter.student} <{letter.address}> {_STATES[letter.state]}: {letter.subject}")
            if open_:
                echo(f"\nthe first of them:\n\n{open_[0].text}\n")
    except (ValueError, OSError) as error:
        raise fail(error) from None
    except KeyboardInterrupt:
        echo("stopped; give the same command again, and it goes on", err=True)
        raise typer.Exit(130) from None
    unknown = [letter.student for letter in letters if letter.state == "unknown" and letter not in open_]
    left_out |= dict.fromkeys(unknown, "may have got it, because a run was stopped at it: --again sends it")
    left_out = {student: why for student, why in left_out.items() if not only or student in named}
    for student, why in left_out.items():
        echo(f"not to {student}: {why}")
    echo(
        f"sent to {len(sent)} student{'' if len(sent) == 1 else 's'}"
        if really
        else f"{len(open_)} to send; nothing was sent, --send does it"
    )
    raise typer.Exit(3 if left_out else 0)


def _server(server: str, sender: str, login: str) -> Server:
    from gradebook.export.mail import MailError, Server

    host, port = _check_server(server, sender)
    if login and not os.environ.get(PASSWORD):
        raise MailError(
            f"the password of {login!r} is missing: put it into the variable {PASSWORD}, or leave --login out"
        )
    return Server(host, port, sender, login, os.environ.get(PASSWORD, ""))


def _check_server(server: str, sender: str) -> tuple[str, int]:
    """Host and port. Raises `MailError` where nothing can be sent through or from these."""
    from gradebook.export.mail import MailError

    host, _, port = server.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16 or "@" not in sender:
        raise MailError("say where from and through what: --sender course@uni.example --server smtp.uni.example:587")
    return host, int(port)
