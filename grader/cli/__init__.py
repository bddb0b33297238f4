"""The command `gpulabs`: grading, and the tools for whoever runs the course. Only reads arguments, does no work."""

from gradebox.common import platforms

platforms.require()  # before what only such systems have is imported

import typer

from gradebook import cli
from grader import FOLDER

_COMMANDS = {
    "doctor": "grader.cli.doctor:examine_machine",
    "next": "grader.cli.next:show_next",
    "grade": "grader.cli.grading:grade_submission",
    "watch": "grader.cli.watching:watch_submission",
    "release": "grader.cli.releasing:release_labs",
    **cli.COMMANDS,
    "demo": "gradebook.cli.demo:write_demo",
    "mail": "gradebook.cli.mailing:mail_feedback",
    "notebook": "grader.cli.notebook:notebook_app",
    "data": "grader.cli.datasets:data_app",
}
"""Module and name in it, of a function or of an app of its own: the order is that of the help."""

app = typer.Typer(
    cls=cli.group_of(_COMMANDS), no_args_is_help=True, add_completion=False, help="Tools for running the course."
)


@app.callback()
def _commands(ctx: typer.Context) -> None:
    """Tools for running the course."""
    if ctx.invoked_subcommand in (*cli.COMMANDS, "mail"):
        from gradebook.cli import host

        host.use(FOLDER, "gpulabs")
