"""`gpulabs manual`: what people grade of a class, and requests to look again."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradebook.cli.echo import echo, note
from gradebook.cli.plugins import commands_of, fail
from gradebook.command_name import command
from gradebox.common.command_line import CommandApp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradebook.export.book import Book
    from gradebook.grading.manual_grading.requests import NewRequest

manual_app = CommandApp(
    cls=commands_of("manual"), no_args_is_help=True, help="Grade reports by hand, and answer requests to look again."
)

_Class = Annotated[
    Path, typer.Argument(help="The folder of the class (--out of the command class).", show_default=False)
]
_As = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who grades or answers (default: your login).")]


@manual_app.command("init")
def write_rubric(folder: _Class) -> None:
    """Write a rubric to begin with, FOLDER/manual_grading/rubric.toml."""
    from gradebook.grading.manual_grading import rubric
    from gradebook.store import Gradebook

    try:
        Gradebook(folder, locked=False).close()
        path = rubric.write_template(folder)
    except (ValueError, OSError) as error:
        raise fail(error) from None
    echo(f"wrote {path}; say in it what is graded, then: {command()} manual grade {shlex.quote(str(folder))} --as NAME")


@manual_app.command("list")
def list_progress(folder: _Class) -> None:
    """Say how far the grading by hand is, and who graded what; exit code 3 as long as something is left."""
    from gradebook.export import everything
    from gradebook.export.book import Book
    from gradebook.grading.manual_grading import FOLDER

    try:
        book = Book.open(folder)
    except (ValueError, OSError) as error:
        raise fail(error) from None
    if not (book.result.manual_max or book.result.reports_title):
        raise fail(
            f"nothing is graded by hand here: {command()} manual init {shlex.quote(str(folder))} writes a rubric"
        )
    left = _say_progress(book)
    for text in everything.marks_in_vain(book.view, book.result, folder):
        note(text)
    result = book.result
    if not left and result.reports_title and not result.reports_released:
        file = folder / FOLDER / "reports.toml"
        echo(f"all is graded; released = true in {file} gives students the points of their reports")
    if not left and result.manual_max and not result.manual_released:
        file = folder / FOLDER / "rubric.toml"
        echo(f"all is graded; released = true in {file} gives it to students and exports")
    raise typer.Exit(3 if left else 0)


def _say_progress(book: Book) -> int:
    """Print it, and return how many submissions are left."""
    graders: Counter[str] = Counter()
    left: dict[str, list[str]] = {"handed in again, look again": [], "not graded to the end": []}
    for line in book.view.to_read:
        result = line.result
        graders.update(criterion.by for criterion in result.by_hand if criterion.by)
        if not result.graded_by_hand:
            left["handed in again, look again" if result.graded_anew else "not graded to the end"].append(line.student)
    open_count = sum(map(len, left.values()))
    count = len(book.view.to_read)
    outside = [line.student for line in book.view.strangers if line.result.by_hand]
    more = f"; not in the roster, so not counted: {', '.join(outside)}" if outside else ""
    echo(f"{count - open_count} of {count} submissions are graded by hand{more}")
    for name, number in sorted(graders.items()):
        echo(f"  {name}: {number} criteria")
    for what, names in left.items():
        if names:
            echo(f"{what}: {', '.join(names)}")
    return open_count


@manual_app.command("ask")
def ask_to_look_again(
    folder: _Class,
    student: Annotated[str, typer.Argument(help="The student, as in grades.csv.")],
    about: Annotated[str, typer.Argument(help="A criterion, like lab1.memory or manual.discussion; or all.")],
    text: Annotated[str, typer.Argument(help="The text of the request.")],
) -> None:
    """Record that a student asks to look again."""
    from gradebook.grading.manual_grading.requests import NewRequest, about_of

    _record(folder, [NewRequest(student, text, about_of(about))])


@manual_app.command("import")
def import_requests(
    folder: _Class,
    file: Annotated[Path, typer.Argument(help="A CSV with student, about, text, as a form gives it; or TOML.")],
) -> None:
    """Record the requests of a file; those that are there already are left as they are."""
    from gradebook.grading.manual_grading import requests

    try:
        incoming = requests.read(file)
    except ValueError as error:
        raise fail(error) from None
    _record(folder, incoming)


def _record(folder: Path, incoming: Sequence[NewRequest]) -> None:
    from gradebook.export.book import Book
    from gradebook.grading.manual_grading import requests
    from gradebook.store import deciding

    try:
        with deciding(folder):
            book = Book.open(folder)
            students = [line.student for line in book.view.lines]
            # A team's request is one of each member, whose feedback has the answer.
            incoming, problems = _of_each(book, incoming)
            new = requests.add(folder, incoming, students, _criteria(book), problems)
            Book.open(folder).export(say=note)
    except (ValueError, OSError) as error:
        raise fail(error) from None
    known = len(incoming) - len(new)
    echo(f"recorded {', '.join(new) or 'nothing new'}{f'; {known} known already' if known else ''}")
    if settled := requests.settled(folder, incoming, new):
        again = f"{command()} manual answer {shlex.quote(str(folder))} ID ''"
        echo(f"answered before: {', '.join(settled)}. To open one again: {again}")


def _of_each(book: Book, incoming: Sequence[NewRequest]) -> tuple[list[NewRequest], list[str]]:
    """The requests by keys, a team's for each member, and what is wrong with the others."""
    found: list[NewRequest] = []
    problems = []
    for request in incoming:
        try:
            found += [replace(request, student=key) for key in book.keys(request.student)]
        except ValueError as error:
            problems.append(f"{request.called}: {error}")
    return found, problems


def _criteria(book: Book) -> list[str]:
    """What a request can be about."""
    by_hand = {f"manual.{criterion.id}": None for line in book.view.lines for criterion in line.result.by_hand}
    return [criterion.id for lab in book.rubric.select(book.result.labs) for criterion in lab.criteria] + list(by_hand)


@manual_app.command("requests")
def list_requests(
    folder: _Class, everything: Annotated[bool, typer.Option("--all", help="Answered requests as well.")] = False
) -> None:
    """List the requests to look again; exit code 3 as long as one has no answer."""
    from gradebook.grading.manual_grading import requests
    from gradebook.store import Gradebook

    try:
        Gradebook(folder, locked=False).close()  # a folder without one has no requests either
        recorded = requests.load(folder)
    except (ValueError, OSError) as error:
        raise fail(error) from None
    left = [request for request in recorded if request.answered_at is None]
    for request in recorded if everything else left:
        echo(f"{request.id}  {request.student}  {request.about or 'all'}  {request.asked_at:%Y-%m-%d %H:%M %Z}")
        echo(f"  {' '.join(request.text.split())}")
        if request.answered_at is not None:
            echo(f"  answered by {request.answered_by}: {' '.join(request.answer.split())}")
        else:
            echo(f"  → {command()} manual answer {shlex.quote(str(folder))} {request.id} 'TEXT'")
    echo(f"{len(left)} of {len(recorded)} are open" if recorded else "nobody has asked")
    raise typer.Exit(3 if left else 0)


@manual_app.command("answer")
def answer_request(
    folder: _Class,
    request: Annotated[str, typer.Argument(help="Its id, as `manual requests` lists it.")],
    text: Annotated[str, typer.Argument(help="The answer; an empty one opens it again.")],
    as_: _As = None,
) -> None:
    """Answer a request; the student's feedback has the answer. Points change by marks or overrides."""
    from gradebook.export.book import Book
    from gradebook.grading.manual_grading import grader_name, requests
    from gradebook.store import deciding

    try:
        with deciding(folder):
            view = Book.open(folder).view
            asked = next((row for row in requests.load(folder) if row.id == request), None)
            line = view.line(asked.student) if asked else None
            mates = line.result.teammates if line is not None else ()
            made, *others = requests.answer(folder, request, text, grader_name(as_), mates)
            Book.open(folder).export(say=note)
    except (ValueError, OSError) as error:
        raise fail(error) from None
    team = f", and {', '.join(other.student for other in others)}, who asked the same" if others else ""
    state = "answered" if made.answer else "open again"
    echo(f"{made.id} of {made.student}{team}: {state}; the feedback is written again")
    if asked is not None and asked.answer and asked.answer != made.answer:
        echo(f"this replaces the answer of {asked.answered_by}: {' '.join(asked.answer.split())}")
