"""`gpulabs next`: which task to do next, and why; and the hints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradebox import hints as all_hints
from gradebox import launch
from gradebox.configuration import own_command
from gradebox.grade import ExitCode
from gradebox.guide import text
from gradebox.guide.advice import advise
from gradebox.guide.standing import read
from gradebox.options import Options
from grader import FOLDER, course
from grader.cli.echo import echo


def show_next(
    submission: Annotated[Path, typer.Argument(help="The folder with your labs.")] = Path("labs"),
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3.")] = None,
    hints: Annotated[
        int, typer.Option(min=0, max=all_hints.MAX_STEPS, help="So many steps of the hint: 1 idea, 2 method, 3 shape.")
    ] = 0,
    check: Annotated[
        str | None,
        typer.Option(help="Hints for this check or criterion instead, for example lab1.benchmark.warmed_up."),
    ] = None,
    grade: Annotated[bool, typer.Option("--grade", help="Grade first (these labs), then say what is next.")] = False,
    report: Annotated[Path, typer.Option(help="Where grade.json lies.")] = Path("grade-report"),
    device: Annotated[str, typer.Option(help="With --grade: auto, cuda, vgpu or vgpu:MODEL.")] = "auto",
) -> None:
    """Say which task to do next and why, from the stubs that are open and the last grade; grades only with --grade.

    Exit codes: 0 something to do or everything done, 2 could not say.
    """
    ours = course()
    try:
        labs = ours.labs if lab is None else ours.rubric.named(lab)
    except ValueError as error:
        raise _fail(str(error)) from None
    known = all_hints.load(ours)
    command = own_command(ours.command)
    if check is not None:
        for row in _asked(check, hints or 1, command):
            echo(row)
        return
    if not submission.is_dir():
        raise _fail(f"there is no folder {submission}; run this in the folder of the course, or name your labs")
    if grade:
        _grade(submission, lab, device, report)
    options = f" --report {report}" if report != Path("grade-report") else ""
    options = f" {submission}{options}" if submission != Path("labs") else options
    folder = submission if any((submission / one.package).is_dir() for one in ours.labs) else submission / "labs"
    if not folder.is_dir():
        folder = submission
    advice = advise(folder, labs, known, read(submission, report), ours.begin_broken)
    for row in text.lines(advice, known, ours, steps=hints, command=command, options=options):
        echo(row)


def _asked(name: str, steps: int, command: str) -> list[str]:
    """The hints of one check, or of all checks of a criterion."""
    hints = all_hints.load(course())
    chosen = [check for check in hints if check == name or check.startswith(f"{name}.")]
    if not chosen:
        near = [check for check in hints if name.rpartition(".")[2] in check][:3]
        also = f"; did you mean {', '.join(near)}?" if near and name else "; a grade names them"
        raise _fail(f"there is no check or criterion {name}{also}")
    rows: list[str] = []
    for check in chosen:
        rows += [row for row in text.hint_lines(check, hints, course(), steps=steps, command=command) if row or rows]
    return rows


def _grade(submission: Path, lab: str | None, device: str, report: Path) -> None:
    options = Options(course=str(FOLDER), submission=str(submission), lab=lab, device=device, report=str(report))
    if launch.run(options) == ExitCode.COULD_NOT_GRADE:
        raise typer.Exit(int(ExitCode.COULD_NOT_GRADE))
    echo()


def _fail(message: str) -> typer.Exit:
    echo(f"error: {message}", err=True)
    return typer.Exit(int(ExitCode.COULD_NOT_GRADE))
