"""`gpulabs export canvas`: grades and comments to Canvas without a file."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradebook.plugins import Echo, Host

if TYPE_CHECKING:
    from gradebook.export.book import Book
    from gradebook.plugins.canvas_push.push import PushRequest, Report

TOKEN = "CANVAS_TOKEN"
_COULD_NOT, _OPEN, _INTERRUPTED = 2, 3, 130


def command(host: Host) -> Callable[..., None]:
    """`gpulabs export canvas`."""

    def export_canvas(
        folder: Annotated[
            Path, typer.Argument(help="The folder of the class (--out of the command class).", show_default=False)
        ],
        push: Annotated[bool, typer.Option("--push", help="Send it. Without: only show what would change.")] = False,
        url: Annotated[str | None, typer.Option(help="Canvas's address (default: canvas_url of class.toml).")] = None,
        course: Annotated[
            str | None,
            typer.Option(help="The number in the course's address, or sis_course_id:... (default: canvas_course)."),
        ] = None,
        assignment: Annotated[
            str | None,
            typer.Option(help="Its number or name (default: canvas_assignment_id, the roster's, the title)."),
        ] = None,
        section: Annotated[str, typer.Option(help="Only students of this section, by number or name.")] = "",
        comments: Annotated[bool, typer.Option(help="Write a comment to each student, too.")] = True,
        replace: Annotated[
            list[str] | None,
            typer.Option(
                metavar="STUDENT", help="Replace a grade that was given by hand on Canvas; or: all. Repeatable."
            ),
        ] = None,
        times: Annotated[
            Path | None,
            typer.Option(help='Instead: write who handed in when, as a table for submitted = "times.csv".'),
        ] = None,
        token_file: Annotated[
            Path | None, typer.Option(help=f"A file with the access token (default: the variable {TOKEN}).")
        ] = None,
    ) -> None:
        """Show what sending the class's grades to Canvas would change, and send them with --push.

        May be stopped and given again: nothing is sent twice, and what was changed on Canvas by hand stays and is
        named.

        Exit codes: 0 all is as it should be, 2 it could not be done, 3 something is left for a person, 130 interrupted.
        """
        try:
            from gradebook.plugins.canvas_push import messages
        except ImportError:
            raise host.fail('this needs requests: pip install "gpu-computing-labs[canvas]"', _COULD_NOT) from None
        from gradebook.export.book import Book

        try:
            book = Book.open(folder)
            address, source, request = _request(book, url, course, assignment)
            request = dataclasses.replace(
                request, section=section, comments=comments, replace=tuple(replace or ()), send=push
            )
            if times is not None:
                count = _write_times(times, address, source, request, _token(token_file), host.echo)
                students = "1 student" if count == 1 else f"{count} students"
                host.echo(f'wrote when {students} handed in: submitted = "{times.name}" in class.toml uses it')
                return
            report = _carried_out(book, address, source, request, _token(token_file), host.echo)
        except (ValueError, OSError) as error:
            raise host.fail(error, _COULD_NOT) from None
        except KeyboardInterrupt:
            host.echo("stopped; give the same command again: it looks first what has arrived", err=True)
            raise typer.Exit(_INTERRUPTED) from None
        host.echo(messages.text(report))
        for text in book.notices():
            host.echo(f"note: {text}")
        raise typer.Exit(_OPEN if messages.is_open(report) else 0)

    return export_canvas


def _request(book: Book, url: str | None, course: str | None, assignment: str | None) -> tuple[str, str, PushRequest]:
    """Canvas's address, where it was given, and what is to be sent where; what the command leaves out, the class knows.

    Raises:
        ValueError: neither says it.
    """
    from gradebook.export import canvas, everything
    from gradebook.plugins.canvas_push.client import PushError
    from gradebook.plugins.canvas_push.push import PushRequest

    known = everything.options(book.settings.exports)
    address, number = url or known.canvas_url, course or known.canvas_course
    for value, option, key in ((address, "--url", "canvas_url"), (number, "--course", "canvas_course")):
        if not value:
            raise PushError(f"where to? Say it with {option}, or with {key} under [exports] in class.toml")
    of_roster = re.fullmatch(r".+ \((\d+)\)", canvas.column(book.view, known.canvas_assignment_id))
    named = assignment or (of_roster[1] if of_roster else book.result.title)
    source = "--url" if url else f"canvas_url in {book.configuration}"
    return address, source, PushRequest(folder=book.folder, course=number, assignment=named)


def _carried_out(book: Book, address: str, source: str, request: PushRequest, token: str, echo: Echo) -> Report:
    from gradebook.plugins.canvas_push.client import Client
    from gradebook.plugins.canvas_push.push import push

    def say(text: str) -> None:
        echo(text, err=True)

    return push(book.view, request, Client(address, token, say, given=source), say)


def _write_times(file: Path, address: str, source: str, request: PushRequest, token: str, echo: Echo) -> int:
    """Write a table of who handed in when, as Canvas knows it; says how many have."""
    from gradebook.plugins.canvas_push.client import Client
    from gradebook.plugins.canvas_push.service import Canvas
    from gradebook.text_files import to_csv, write_file

    canvas = Canvas(Client(address, token, lambda text: echo(text, err=True), given=source), request.course)
    submissions = canvas.submissions(canvas.assignment(request.assignment))
    people = {person.id: person for person in canvas.students()}
    rows = [
        [str(user), person.sis_user_id or "", person.login_id or "", person.name or "", submission.submitted_at]
        for user, submission in submissions.items()
        if submission.submitted_at and (person := people.get(user)) is not None
    ]
    if gone := sum(bool(row.submitted_at) and user not in people for user, row in submissions.items()):
        are = "is" if gone == 1 else "are"
        echo(f"note: {gone} handed in and {are} not in the course any more, so not in {file.name}")
    write_file(file, to_csv(["ID", "SIS User ID", "SIS Login ID", "name", "submitted_at"], sorted(rows)))
    return len(rows)


def _token(file: Path | None) -> str:
    """The access token, from where neither the list of processes nor the shell's history shows it.

    Raises:
        ValueError: there is none, or it is none.
    """
    from gradebook.plugins.canvas_push.client import PushError

    if file is None:
        token, where = os.environ.get(TOKEN, ""), f"the variable {TOKEN}"
    else:
        token, where = file.read_text("utf-8", "replace"), str(file)
        if os.name == "posix" and file.stat().st_mode & 0o077:
            raise PushError(f"{file} can be read by others, who could grade with it: chmod 600 {file}")
    token = token.strip()
    if not token:
        raise PushError(
            f"there is no access token in {where}; make one in Canvas (Account, Settings, New Access Token) and put it "
            f"into {TOKEN} or a file for --token-file"
        )
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise PushError(f"{where} holds no access token: it has spaces, line ends or unusual characters in it")
    return token
