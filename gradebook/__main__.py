"""`python -m gradebook`, and the command `gradebook`: classes of any course. Only reads arguments."""

from __future__ import annotations

from gradebox.common import platforms

platforms.require()  # before what only such systems have is imported

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gradebook import cli

COMMANDS = {**cli.COMMANDS, "demo": "gradebook.cli.demo:write_demo", "mail": "gradebook.cli.mailing:mail_feedback"}

app = typer.Typer(
    cls=cli.group_of(COMMANDS), no_args_is_help=True, add_completion=False, help="Grades classes of a course."
)


@app.callback()
def _commands(
    course: Annotated[
        Path | None,
        typer.Option(
            help="The course's folder, with course.toml (default: this folder, if it is one).",
            envvar="GRADEBOOK_COURSE",
        ),
    ] = None,
) -> None:
    """Grades classes of a course."""
    from gradebook.cli import host

    here = Path.cwd()
    chosen = course.expanduser().resolve() if course else here if (here / "course.toml").is_file() else None
    host.use(chosen, f"gradebook --course {shlex.quote(str(course))}" if course else "gradebook")


if __name__ == "__main__":
    app(prog_name="gradebook")
