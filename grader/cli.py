"""The command `gpulabs`: grading, and the tools for whoever runs the course. Only reads arguments, does no work."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from grader import release
from grader.configuration import own_configuration

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tools for running the course.")


@app.callback()
def root() -> None:
    """Keep sub-commands, also while there is one only."""


@app.command("grade")
def grade_submission(
    submission: Annotated[Path, typer.Argument(help="The folder to grade.")] = Path("labs"),
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3.")] = None,
    device: Annotated[str, typer.Option(help="auto, cuda, vgpu or vgpu:MODEL.")] = "auto",
    seed: Annotated[int | None, typer.Option(help="Repeat a grading with its printed seed.")] = None,
    report: Annotated[Path, typer.Option(help="Where grade.json and grade.html go.")] = Path("grade-report"),
    overrides: Annotated[
        Path | None, typer.Option(help="Points given by hand (default: overrides.toml here, if there is one).")
    ] = None,
    student: Annotated[str | None, typer.Option(help="Whose overrides apply (default: the folder's name).")] = None,
) -> None:
    """Grade a submission, as `pytest --grade` does; never reads pytest configuration of the submission.

    Exit codes: 0 passed, 1 not passed, 2 could not grade, 3 needs review.
    """
    command = [sys.executable, "-P", "-m", "pytest", *own_configuration(), "--grade", f"--submission={submission}"]
    command += [f"--device={device}", f"--grade-report={report}"]
    command += [f"--lab={lab}"] if lab is not None else []
    command += [f"--grade-seed={seed}"] if seed is not None else []
    command += [f"--overrides={overrides}"] if overrides is not None else []
    command += [f"--student={student}"] if student is not None else []
    process = subprocess.Popen(command)
    while True:
        try:
            raise typer.Exit(process.wait())
        except KeyboardInterrupt:
            continue  # the terminal has interrupted pytest too; it ends the sandbox and then itself


@app.command("release")
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
