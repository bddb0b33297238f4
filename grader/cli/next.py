"""`gpulabs next`: which task to do next, and why; and the hints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradebox import arguments, next_command
from gradebox.run.options import Options
from grader import FOLDER


def show_next(
    submission: arguments.OwnLabs = Path("labs"),
    lab: arguments.Lab = None,
    hints: arguments.Hints = 0,
    check: arguments.Check = None,
    grade: arguments.GradeFirst = False,
    report: arguments.OwnReport = Path("grade-report"),
    device: Annotated[str, typer.Option(help="With --grade: auto, cuda, vgpu or vgpu:MODEL.")] = "auto",
) -> None:
    """Say which task to do next and why, from the stubs that are open and the last grade; grades only with --grade.

    Exit codes: 0 something to do or everything done, 2 could not say.
    """
    options = Options(
        course=str(FOLDER), submission=str(submission), lab=arguments.joined(lab), device=device, report=str(report)
    )
    raise typer.Exit(next_command.show_next(options, hints=hints, check=check, first_grade=grade))
