"""`gpulabs next`: which task to do next, and why; and the hints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradebox.guide import command
from gradebox.hints import MAX_STEPS
from gradebox.options import Options
from grader import FOLDER


def show_next(
    submission: Annotated[Path, typer.Argument(help="The folder with your labs.")] = Path("labs"),
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3.")] = None,
    hints: Annotated[
        int, typer.Option(min=0, max=MAX_STEPS, help="So many steps of the hint: 1 idea, 2 method, 3 shape.")
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
    options = Options(course=str(FOLDER), submission=str(submission), lab=lab, device=device, report=str(report))
    raise typer.Exit(command.show_next(options, hints=hints, check=check, first_grade=grade))
