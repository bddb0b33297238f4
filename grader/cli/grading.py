"""`gpulabs grade`: one submission, as `pytest --grade` does it."""

from pathlib import Path
from typing import Annotated

import typer

from gradebox import launch
from gradebox.options import Options
from grader import FOLDER


def grade_submission(
    submission: Annotated[Path, typer.Argument(help="The folder to grade.")] = Path("labs"),
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3; or container.")] = None,
    criterion: Annotated[str | None, typer.Option(help="Only these criteria, for example lab3.accumulation.")] = None,
    device: Annotated[str, typer.Option(help="auto, cuda, vgpu or vgpu:MODEL.")] = "auto",
    seed: Annotated[
        int | None, typer.Option("--seed", "--grade-seed", help="Repeat a grading with its printed seed.")
    ] = None,
    report: Annotated[
        Path, typer.Option("--report", "--grade-report", help="Where grade.json and grade.html go.")
    ] = Path("grade-report"),
    overrides: Annotated[
        Path | None, typer.Option(help="Points given by hand (default: overrides.toml of the course's checkout).")
    ] = None,
    student: Annotated[str | None, typer.Option(help="Whose overrides apply (default: the folder's name).")] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for the whole grading (default: 600 on the virtual GPU).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Sandboxes side by side (default: per core and 3 GB one; 1 on a real GPU).")
    ] = None,
) -> None:
    """Grade a submission, as `pytest --grade` does; executes nothing of the folder it is started in.

    Exit codes: 0 passed, 1 not passed, 2 could not grade, 3 needs review.
    """
    options = Options(
        course=str(FOLDER),
        submission=str(submission),
        lab=lab,
        criterion=criterion,
        device=device,
        seed=seed,
        report=str(report),
        overrides=None if overrides is None else str(overrides),
        student=student,
        time_limit=time_limit,
        jobs=jobs,
    )
    raise typer.Exit(launch.run(options))
