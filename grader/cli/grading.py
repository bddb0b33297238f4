"""`gpulabs grade`: one submission, as `pytest --grade` does it."""

from pathlib import Path
from typing import Annotated

import typer

from gradebox import arguments, launch
from gradebox.run.options import Options
from grader import FOLDER


def grade_submission(
    submission: arguments.Submission = Path("labs"),
    lab: arguments.Lab = None,
    criterion: arguments.Criterion = None,
    device: Annotated[str, typer.Option(help="auto, cuda, vgpu or vgpu:MODEL.")] = "auto",
    seed: arguments.Seed = None,
    report: arguments.Report = Path("grade-report"),
    overrides: arguments.Overrides = None,
    student: arguments.Student = None,
    time_limit: arguments.TimeLimit = None,
    jobs: arguments.Jobs = None,
) -> None:
    """Grade a submission, as `pytest --grade` does; executes nothing of the folder it is started in.

    Exit codes: 0 passed, 1 not passed, 2 could not grade, 3 needs review.
    """
    options = Options(
        course=str(FOLDER),
        submission=str(submission),
        lab=arguments.joined(lab),
        criterion=arguments.joined(criterion),
        device=device,
        seed=seed,
        report=str(report),
        overrides=None if overrides is None else str(overrides),
        student=student,
        time_limit=time_limit,
        jobs=jobs,
    )
    raise typer.Exit(launch.run(options))
