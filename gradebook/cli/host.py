"""Which course the commands are about, and what they are called: a course's own command fills in both."""

from __future__ import annotations

from pathlib import Path

import typer

from gradebook import command_name
from gradebook.cli.echo import echo
from gradebox.common.exit_codes import ExitCode
from gradebox.course.course import Course, load
from gradebox.course.rubric import Rubric

_folder: Path | None = None


def use(folder: Path | None, command: str) -> None:
    """Let the commands be about the course in `folder`; None: of none, until one is needed and named."""
    global _folder
    _folder = folder
    command_name.use(command)


def folder() -> Path:
    """The course's folder; ends the command where none is named."""
    if _folder is None:
        said = "which course? Name its folder, which holds course.toml: gradebook --course DIR ..., or GRADEBOOK_COURSE"
        echo(f"could not grade: {said}", err=True)
        raise typer.Exit(int(ExitCode.COULD_NOT_GRADE))
    return _folder


def course() -> Course:
    """The course; ends the command where it cannot be read."""
    try:
        return load(folder())
    except ValueError as error:
        echo(f"could not grade: {error}", err=True)
        raise typer.Exit(int(ExitCode.COULD_NOT_GRADE)) from None


def rubric() -> Rubric | None:
    """The course's rubric as it is now; None where no course is named, or where it cannot be read."""
    try:
        return None if _folder is None else load(_folder).rubric
    except ValueError:
        return None


def handed_out() -> Path:
    """What every student was given: `labs` in the course's folder, or next to it."""
    inner = folder() / "labs"
    return inner if inner.is_dir() else folder().parent / "labs"
