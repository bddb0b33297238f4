"""`gpulabs release`: what students get, made from the solutions."""

from pathlib import Path
from typing import Annotated

import typer

from grader import release


def release_labs(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail when labs/ is out of date.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files in labs/ that were edited.")] = False,
    solutions: Annotated[Path, typer.Option(help="The reference solutions.")] = Path("solutions"),
    labs: Annotated[Path, typer.Option(help="What students get.")] = Path("labs"),
) -> None:
    """Generate the students' stubs from the solutions."""
    try:
        if check:
            drift = release.check(solutions, labs)
            for message in drift:
                typer.echo(message)
            if drift:
                typer.echo(f"{len(drift)} files in {labs} do not match {solutions}: run gpulabs release", err=True)
                raise typer.Exit(1)
            typer.echo(f"{labs} matches {solutions}")
            return
        released = release.make_labs(solutions, labs, force=force)
    except release.ReleaseError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    for name in released.written:
        typer.echo(f"wrote {labs / name}")
    for name in released.removed:
        typer.echo(f"removed {labs / name}")
    typer.echo(f"{released.unchanged} files were up to date")
