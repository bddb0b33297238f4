"""`python -m gradebox`, and the command `gradebox`: grades a submission against any course. Only reads arguments.

A course that has a command of its own (`gpulabs`) does the same with its folder filled in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradebox import launch
from gradebox.front import refuse
from gradebox.guide import command
from gradebox.hints import MAX_STEPS
from gradebox.options import TIME_LIMIT_SECONDS, Options

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Grades submissions against a course.")

_Course = Annotated[
    Path, typer.Option(help="The course's folder, with course.toml.", envvar="GRADEBOX_COURSE", show_default=False)
]
_Device = Annotated[str, typer.Option(help="auto, cpu, or another one that the course knows.")]
_Report = Annotated[Path, typer.Option("--report", "--grade-report", help="Where grade.json and grade.html go.")]


@app.command("grade")
def grade_submission(
    course: _Course,
    submission: Annotated[Path, typer.Argument(help="The folder to grade.")] = Path("labs"),
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3; or an exercise.")] = None,
    criterion: Annotated[str | None, typer.Option(help="Only these criteria, for example lab3.accumulation.")] = None,
    device: _Device = "auto",
    seed: Annotated[
        int | None, typer.Option("--seed", "--grade-seed", help="Repeat a grading with its printed seed.")
    ] = None,
    report: _Report = Path("grade-report"),
    overrides: Annotated[
        Path | None, typer.Option(help="Points given by hand (default: overrides.toml beside the course's folder).")
    ] = None,
    student: Annotated[str | None, typer.Option(help="Whose overrides apply (default: the folder's name).")] = None,
    time_limit: Annotated[
        float | None, typer.Option(help=f"Seconds for the whole grading (default: {TIME_LIMIT_SECONDS:g}).")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Sandboxes side by side (default: per core and 3 GB one).")] = None,
) -> None:
    """Grade a submission; executes nothing of it outside the sandbox.

    Exit codes: 0 passed, 1 not passed, 2 could not grade, 3 needs review.
    """
    options = Options(
        course=str(_own(course, submission)),
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


@app.command("next")
def show_next(
    course: _Course,
    submission: Annotated[Path, typer.Argument(help="The folder with your labs.")] = Path("labs"),
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3.")] = None,
    hints: Annotated[int, typer.Option(min=0, max=MAX_STEPS, help="So many steps of the hint.")] = 0,
    check: Annotated[str | None, typer.Option(help="Hints for this check or criterion instead.")] = None,
    grade: Annotated[bool, typer.Option("--grade", help="Grade first (these labs), then say what is next.")] = False,
    report: Annotated[Path, typer.Option(help="Where grade.json lies.")] = Path("grade-report"),
    device: _Device = "auto",
) -> None:
    """Say which task to do next and why; grades only with --grade.

    Exit codes: 0 something to do or everything done, 2 could not say.
    """
    options = Options(
        course=str(_own(course, submission)), submission=str(submission), lab=lab, device=device, report=str(report)
    )
    raise typer.Exit(command.show_next(options, hints=hints, check=check, first_grade=grade))


def _own(course: Path, submission: Path) -> Path:
    """The course's folder, which must be the instructor's: its checks run in the judge. Ends the command otherwise."""
    if course.resolve().is_relative_to(submission.resolve()):
        raise typer.Exit(refuse(f"the course {course} lies in the submission {submission}, so it is the submission's"))
    if (file := launch.loaded_from(Path.cwd(), submission)) is not None:
        raise typer.Exit(
            refuse(
                f"Python has executed {file}, which belongs to the submission or lies beside it, before the grader "
                "began; start in another folder, or as `gradebox` instead of `python -m gradebox`"
            )
        )
    return course.resolve()


if __name__ == "__main__":
    app(prog_name="gradebox")
