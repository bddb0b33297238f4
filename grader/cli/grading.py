"""`gpulabs grade`: one submission, as `pytest --grade` does it."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from grader.configuration import own_configuration


def grade_submission(
    submission: Annotated[Path, typer.Argument(help="The folder to grade.")] = Path("labs"),
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3; or container.")] = None,
    criterion: Annotated[str | None, typer.Option(help="Only these criteria, for example lab3.accumulation.")] = None,
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
    command += [f"--criterion={criterion}"] if criterion is not None else []
    command += [f"--grade-seed={seed}"] if seed is not None else []
    command += [f"--overrides={overrides}"] if overrides is not None else []
    command += [f"--student={student}"] if student is not None else []
    process = subprocess.Popen(command)
    while True:
        try:
            raise typer.Exit(process.wait())
        except KeyboardInterrupt:
            continue  # the terminal has interrupted pytest too; it ends the sandbox and then itself
