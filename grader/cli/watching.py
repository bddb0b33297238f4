"""`gpulabs watch`: grades again whenever a file is saved."""

from pathlib import Path
from typing import Annotated

import typer

from gradebox import arguments, launch
from gradebox.run.options import Options
from grader import FOLDER


def watch_submission(
    submission: arguments.OwnLabs = Path("labs"),
    lab: arguments.Lab = None,
    criterion: arguments.Criterion = None,
    device: Annotated[str, typer.Option(help="auto, cuda, vgpu or vgpu:MODEL.")] = "auto",
    seed: arguments.Seed = None,
    answering: arguments.Asked = False,
) -> None:
    """Grade again whenever a file is saved: only what that can have changed, and in a second; Ctrl-C ends it.

    Writes no report, and is no grade: `gpulabs grade` asks everything. Exit codes: 0 ended, 2 could not grade.
    """
    options = Options(
        course=str(FOLDER),
        submission=str(submission),
        lab=arguments.joined(lab),
        criterion=arguments.joined(criterion),
        device=device,
        seed=seed,
    )
    raise typer.Exit(launch.run(options, rounds="answer" if answering else "watch"))
