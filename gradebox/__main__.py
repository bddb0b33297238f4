"""`python -m gradebox`, and the command `gradebox`: grades a submission against any course. Only reads arguments.

A course that has a command of its own (`gpulabs`) does the same with its folder filled in.
"""

from __future__ import annotations

from gradebox.common import platforms

platforms.require()  # before what only such systems have is imported

from pathlib import Path
from typing import Annotated

import typer

from gradebox import arguments, launch
from gradebox.common.command_line import CommandApp
from gradebox.common.exit_codes import refuse
from gradebox.common.texts import printable
from gradebox.run.options import Options

app = CommandApp(no_args_is_help=True, add_completion=False, help="Grades submissions against a course.")

_Course = Annotated[
    Path, typer.Option(help="The course's folder, with course.toml.", envvar="GRADEBOX_COURSE", show_default=False)
]
_Device = Annotated[str, typer.Option(help="auto, cpu, or another one that the course knows.")]


@app.command("grade")
def grade_submission(
    course: _Course,
    submission: arguments.Submission = Path("labs"),
    lab: arguments.Lab = None,
    criterion: arguments.Criterion = None,
    device: _Device = "auto",
    seed: arguments.Seed = None,
    report: arguments.Report = Path("grade-report"),
    overrides: arguments.Overrides = None,
    student: arguments.Student = None,
    time_limit: arguments.TimeLimit = None,
    jobs: arguments.Jobs = None,
) -> None:
    """Grade a submission; executes nothing of it outside the sandbox.

    Exit codes: 0 passed, 1 not passed, 2 could not grade, 3 needs review.
    """
    options = Options(
        course=str(_own(course, submission)),
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


@app.command("watch")
def watch_submission(
    course: _Course,
    submission: arguments.OwnLabs = Path("labs"),
    lab: arguments.Lab = None,
    criterion: arguments.Criterion = None,
    device: _Device = "auto",
    seed: arguments.Seed = None,
    answering: arguments.Asked = False,
) -> None:
    """Grade again whenever a file is saved: only what that can have changed, and in a second; Ctrl-C ends it.

    Writes no report, and is no grade: `grade` asks everything. Exit codes: 0 ended, 2 could not grade.
    """
    options = Options(
        course=str(_own(course, submission)),
        submission=str(submission),
        lab=arguments.joined(lab),
        criterion=arguments.joined(criterion),
        device=device,
        seed=seed,
    )
    raise typer.Exit(launch.run(options, rounds="answer" if answering else "watch"))


@app.command("next")
def show_next(
    course: _Course,
    submission: arguments.OwnLabs = Path("labs"),
    lab: arguments.Lab = None,
    hints: arguments.Hints = 0,
    check: arguments.Check = None,
    grade: arguments.GradeFirst = False,
    report: arguments.OwnReport = Path("grade-report"),
    device: _Device = "auto",
) -> None:
    """Say which task to do next and why; grades only with --grade.

    Exit codes: 0 something to do or everything done, 2 could not say.
    """
    options = Options(
        course=str(_own(course, submission)),
        submission=str(submission),
        lab=arguments.joined(lab),
        device=device,
        report=str(report),
    )
    from gradebox import next_command  # `grade` and `watch` only wait for a judge, and need none of this

    raise typer.Exit(next_command.show_next(options, hints=hints, check=check, first_grade=grade))


@app.command("lint")
def lint_course(
    course: _Course,
    solution: Annotated[Path | None, typer.Argument(help="A folder with the labs, solved or as handed out.")] = None,
) -> None:
    """Read a course for mistakes that no grading would notice: hints, tasks, probes and names that lead nowhere.

    Exit codes: 0 nothing found, 1 something to fix, 2 the course cannot be read.
    """
    from gradebox.authoring import lint
    from gradebox.course import course as courses
    from gradebox.course.hints import HintError

    try:
        problems = list(lint.problems(courses.load(course.resolve()), solution))
    except (ValueError, HintError) as error:
        raise typer.Exit(refuse(str(error), "could not read")) from None
    for line in [*problems, f"{len(problems)} to fix" if problems else "nothing to fix"]:
        print(printable(line))
    raise typer.Exit(1 if problems else 0)


def _own(course: Path, submission: Path) -> Path:
    """The course's folder, which must be the instructor's: its checks run in the judge. Ends the command otherwise."""
    if course.resolve().is_relative_to(submission.resolve()):
        raise typer.Exit(refuse(f"the course {course} is in the submission {submission}, so it is the submission's"))
    if (file := launch.loaded_from(Path.cwd(), submission)) is not None:
        raise typer.Exit(
            refuse(
                f"Python has executed {file}, which belongs to the submission or is next to it, before the grader "
                "began; start in another folder, or as `gradebox` instead of `python -m gradebox`"
            )
        )
    return course.resolve()


if __name__ == "__main__":
    app(prog_name="gradebox")
