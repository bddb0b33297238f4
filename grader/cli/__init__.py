"""The command `gpulabs`: grading, and the tools for whoever runs the course. Only reads arguments, does no work."""

import typer

from grader.cli.grading import grade_submission
from grader.cli.releasing import release_labs

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tools for running the course.")
app.command("grade")(grade_submission)
app.command("release")(release_labs)
