"""Lines that a command prints: what they quote of a submission is made printable here, and nowhere else."""

import typer

from gradebox.common.texts import printable


def echo(text: object = "", *, err: bool = False) -> None:
    """Print a line to standard output or, with `err`, to standard error."""
    typer.echo(printable(str(text)), err=err)


def note(text: str) -> None:
    """Print what an instructor should know beside what was asked for."""
    echo(f"note: {text}")
