"""`gpulabs grade`: one submission, as `pytest --grade` does it."""

from pathlib import Path
from typing import Annotated

import typer

from gradebox import launch


def grade_submission(
    submission: Annotated[Path, typer.Argument(help="The folder to grade.")] = Path("labs"),
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3; or container.")] = None,
    criterion: Annotated[str | None, typer.Option(help="Only these criteria, for example lab3.accumulation.")] = None,
    device: Annotated[str, typer.Option(help="auto, cuda, vgpu or vgpu:MODEL.")] = "auto",
    seed: Annotated[int | None, typer.Option(help="Repeat a grading with its printed seed.")] = None,
    report: Annotated[Path, typer.Option(help="Where grade.json and grade.html go.")] = Path("grade-report"),
    overrides: Annotated[
        Path | None, typer.Option(help="Points given by hand (default: overrides.toml of the course's checkout).")
    ] = None,
    student: Annotated[str | None, typer.Option(help="Whose overrides apply (default: the folder's name).")] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for the whole grading (default: 600 on the virtual GPU).")
    ] = None,
) -> None:
    """Grade a submission, as `pytest --grade` does; executes nothing of the folder it is started in.

    Exit codes: 0 passed, 1 not passed, 2 could not grade, 3 needs review.
    """
    arguments = ["--grade", f"--submission={submission}", f"--device={device}", f"--grade-report={report}"]
    arguments += [f"--lab={lab}"] if lab is not None else []
    arguments += [f"--criterion={criterion}"] if criterion is not None else []
    arguments += [f"--grade-seed={seed}"] if seed is not None else []
    arguments += [f"--overrides={overrides}"] if overrides is not None else []
    arguments += [f"--student={student}"] if student is not None else []
    arguments += [f"--time-limit={time_limit}"] if time_limit is not None else []
    raise typer.Exit(launch.run(arguments, submission=submission, report=report))
