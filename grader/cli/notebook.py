"""`gpulabs notebook export`: marked cells of a notebook, written into the lab's modules."""

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer

from gradebook.cli.echo import echo
from gradebox.common.command_line import CommandApp
from grader.notebooks.export import Change, ExportError, plan

notebook_app = CommandApp(no_args_is_help=True, help="Work in notebooks.")


@notebook_app.callback()
def notebooks() -> None:
    """Work in notebooks."""


@notebook_app.command("export")
def export_cells(
    notebook: Annotated[Path, typer.Argument(help="The saved notebook, for example notebooks/lab1.ipynb.")],
    labs: Annotated[Path, typer.Option(help="The folder with the lab packages.")] = Path("labs"),
    force: Annotated[bool, typer.Option("--force", help="Replace without asking what was changed in a file.")] = False,
) -> None:
    """Write the definitions of cells that begin with `# export: lab1_gpu_basics/benchmark.py` into that file.

    A definition that was changed in the file itself is shown and asked for before it is replaced.
    Exit codes: 0 done, 1 nothing was written.
    """
    try:
        planned = plan(notebook, labs)
        for change in () if force else planned.in_doubt:
            _ask(change, labs)
        for path in planned.write():
            names = ", ".join(change.name for change in planned.changes if labs / change.path == path)
            echo(f"wrote {path}: {names}")
    except (ExportError, OSError) as error:
        echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if planned.unchanged:
        echo(f"{planned.unchanged} definitions were up to date")


def _ask(change: Change, labs: Path) -> None:
    """Show what would be lost; goes on only if somebody agrees."""
    place = labs / change.path
    echo(f"{place}: {change.name} was changed there since the last export (or was never exported)")
    lines = difflib.unified_diff(
        change.before.splitlines(), change.after.splitlines(), f"{place} now", "the notebook", lineterm=""
    )
    echo("\n".join(f"    {line}" for line in lines))
    if not sys.stdin.isatty():
        raise ExportError(
            f"{change.name} in {place} would be replaced, and there is no terminal to ask at: nothing was written. "
            "Copy what you want to keep into the cell, then add --force"
        )
    if not typer.confirm(f"Replace {change.name} in {place}?", default=False):
        raise ExportError("nothing was written")
