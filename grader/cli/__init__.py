"""The command `gpulabs`: grading, and the tools for whoever runs the course. Only reads arguments, does no work."""

from gradebox import platforms

platforms.require()  # before what only such systems have is imported

import typer

from grader.cli.classroom import grade_submissions
from grader.cli.doctor import examine_machine
from grader.cli.exporting import export_app, review_class
from grader.cli.grading import grade_submission
from grader.cli.hands import hands_app
from grader.cli.integrity import report_similarity
from grader.cli.next import show_next
from grader.cli.notebook import notebook_app
from grader.cli.pushing import export_canvas
from grader.cli.releasing import release_labs
from grader.cli.watching import watch_submission

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tools for running the course.")
app.command("doctor")(examine_machine)
app.command("next")(show_next)
app.command("grade")(grade_submission)
app.command("watch")(watch_submission)
app.command("release")(release_labs)
app.command("class")(grade_submissions)
app.command("review")(review_class)
app.command("similarity")(report_similarity)
export_app.command("canvas")(export_canvas)
app.add_typer(export_app, name="export")
app.add_typer(hands_app, name="hands")
app.add_typer(notebook_app, name="notebook")
