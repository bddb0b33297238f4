"""`gpulabs export` and `gpulabs review`: what leaves a gradebook, and what an instructor decides about it."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradebook.cli.echo import echo, note
from gradebook.cli.host import course, rubric
from gradebook.cli.host import folder as course_folder
from gradebook.cli.plugins import commands_of, fail, put
from gradebox.common.command_line import CommandApp
from gradebox.course.rubric import Lab
from gradebox.run.grade import Grade

if TYPE_CHECKING:
    from gradebook.export.book import Book

export_app = CommandApp(
    cls=commands_of("export"), no_args_is_help=True, help="Write grades for learning platforms, classrooms and people."
)

_GradeFile = Annotated[Path, typer.Argument(help="The grade.json of one grading.", show_default=False)]
_Class = Annotated[
    Path, typer.Argument(help="The folder of the class (--out of the command class).", show_default=False)
]


def _read_grade(path: Path) -> Grade:
    from gradebook.export import grade_file

    try:
        return grade_file.load(path)
    except grade_file.GradeFileError as error:
        raise fail(error) from None


@export_app.command("class")
def export_class(
    folder: _Class,
    canvas_assignment_id: Annotated[
        int | None, typer.Option(help="The number in the assignment's address (default: that of class.toml).")
    ] = None,
) -> None:
    """Write all exports of a class again, from its gradebook and without grading."""
    from gradebook.export.book import Book
    from gradebook.store import deciding

    try:
        with deciding(folder):
            book = Book.open(folder)
            if (now := rubric()) and (changed := book.changed_course(now)):
                note(changed)
            written = book.export(canvas_assignment_id, note)
        notices = book.notices(canvas_assignment_id)
    except (ValueError, OSError) as error:
        raise fail(error) from None
    echo(f"wrote {len(written)} files; begin with {written[0]}")
    for text in notices:
        note(text)


@export_app.command("feedback")
def export_feedback(
    folder: _Class,
    form: Annotated[
        str, typer.Option("--as", help="moodle, gradescope (zips), github or folders: how it reaches students.")
    ] = "folders",
    out: Annotated[Path | None, typer.Option(help="Where to (default: feedback-FORM, a zip or a folder).")] = None,
) -> None:
    """Write the feedback of a class in the form in which a platform takes it for everybody at once."""
    from gradebook import text_files
    from gradebook.export import FOLDER as EXPORTS
    from gradebook.export import delivery
    from gradebook.export.book import Book
    from gradebook.store import deciding

    forms: tuple[delivery.Form, ...] = ("moodle", "gradescope", "github", "folders")
    chosen = next((known for known in forms if known == form), None)
    if chosen is None:
        others = {"canvas": "; for Canvas: export canvas", "mail": "; by mail: the command mail"}
        raise fail(f"--as {form}: expected one of {', '.join(forms)}{others.get(form.casefold(), '')}")
    target = out or Path(f"feedback-{form}{'.zip' if form in ('moodle', 'gradescope') else ''}")
    try:
        with deciding(folder):
            book = Book.open(folder)
            book.export(say=note)
        written, left_out = delivery.write(book.view, folder / EXPORTS, chosen, target)
    except (ValueError, OSError) as error:
        raise fail(error) from None
    echo(f"wrote {written}{delivery.NEXT_STEP[chosen].format(shlex.quote(str(written)))}")
    if left_out:
        echo(f"not in it: {'; '.join(left_out)}")
    if chosen != "gradescope" and (names := [line.who for line in book.view.undecided]):
        note(f"no score yet, and their feedback says so: {text_files.some(names)}")


@export_app.command("gradescope-autograder")
def export_gradescope_autograder(
    out: Annotated[Path, typer.Option(help="The zip to write.")] = Path("autograder.zip"),
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3.")] = None,
    device: Annotated[str, typer.Option(help="auto, cuda, vgpu or vgpu:MODEL.")] = "auto",
    seed: Annotated[
        int | None, typer.Option(help="The same inputs for everybody (default: new ones each time).")
    ] = None,
) -> None:
    """Make the zip to upload as Gradescope's autograder."""
    from gradebook.export import gradescope_autograder

    try:
        content = gradescope_autograder.build(course(), lab=lab, device=device, seed=seed)
    except gradescope_autograder.AutograderError as error:
        raise fail(error) from None
    put(content, out)


@export_app.command("gradescope-results")
def export_gradescope_results(
    grade: Annotated[Path | None, typer.Argument(help="The grade.json of one grading.")] = None,
    failed: Annotated[Path | None, typer.Option(help="Instead: what a grading printed that gave no grade.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to (default: the terminal).")] = None,
) -> None:
    """Turn a grade.json into Gradescope's results.json."""
    from gradebook.export import grade_file, gradescope

    if (grade is None) == (failed is None):
        raise fail("name a grade.json, or the output of a failed grading with --failed")
    if grade is not None:
        results = gradescope.results(_read_grade(grade))
    else:
        assert failed is not None
        try:
            results = gradescope.not_graded(grade_file.last_line(failed))
        except grade_file.GradeFileError as error:
            raise fail(error) from None
    put(gradescope.to_json(results), out)


@export_app.command("github-actions")
def export_github_actions(
    out: Annotated[Path, typer.Option(help="The workflow file.")] = Path(".github/workflows/grade.yml"),
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3.")] = None,
    runs_on: Annotated[
        str | None,
        typer.Option(help="Labels of a runner of your own, for example self-hosted,gpu (default: GitHub's)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a workflow that was edited.")] = False,
) -> None:
    """Write a workflow with which GitHub Actions grades every push, without any classroom."""
    from gradebook.export import github

    try:
        text = github.workflow(course(), lab=lab, runs_on=runs_on)
    except github.WorkflowError as error:
        raise fail(error) from None
    if not force and out.is_file() and out.read_text("utf-8", "replace") != text:
        raise fail(f"{out} is there already and differs; look at it, then replace it with --force")
    put(text, out)


@export_app.command("github-pushes")
def export_github_pushes(
    submissions: Annotated[
        Path, typer.Argument(help="A folder of repositories, or a list of them (.csv, .toml).", show_default=False)
    ],
    org: Annotated[str | None, typer.Option(help="The owner on GitHub of the repositories in a folder.")] = None,
    out: Annotated[Path, typer.Option(help="The table to write.")] = Path("pushes.csv"),
) -> None:
    """Ask GitHub when commits were pushed, and write a table for submitted in class.toml.

    Needs GitHub's program gh, logged in. Exit codes: 0 all were asked, 2 GitHub cannot be asked, 3 some are missing.
    """
    from gradebook.intake import github_pushes, handed_in
    from gradebook.text_files import write_file

    try:
        names = github_pushes.repositories(handed_in.find(submissions), org)
        pushes = github_pushes.ask(names, lambda name: echo(f"asking GitHub about {name}", err=True))
        if pushes.rows:
            write_file(out, pushes.to_csv())
    except (ValueError, OSError) as error:
        raise fail(error) from None
    for text in pushes.failures:
        echo(f"missing: {text}", err=True)
    if not pushes.rows:
        raise fail(f"there is no push to write, so {out} is not written")
    echo(f'wrote {len(pushes.rows)} pushes to {out}: submitted = "{out.as_posix()}" in class.toml uses them')
    raise typer.Exit(3 if pushes.failures else 0)


@export_app.command("labs", hidden=True)
def export_labs(
    submission: Annotated[Path, typer.Argument(help="The folder of one submission.")],
    out: Annotated[Path, typer.Option(help="An empty folder for the copy.")],
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3.")] = None,
) -> None:
    """For autograders: copy the labs of a submission, however they are packed and spelt, and print where to.

    Says on standard error what does not count; ends with 1, and why, where there is nothing to grade.
    """
    from gradebook.intake.accepted_files import Refused
    from gradebook.intake.lab_folders import LabNames
    from gradebook.intake.pieces import copy_of
    from gradebox.sandbox import SubmissionError

    names = LabNames.of(course().rubric.labs, [chosen.number for chosen in _labs(lab)])
    try:
        labs, remarks = copy_of(submission, out, names)
    except (Refused, SubmissionError) as reason:
        echo(f"the submission {reason}", err=True)
        raise typer.Exit(1) from None
    for remark in remarks:
        echo(remark, err=True)
    echo(str(labs))


def _labs(option: str | None) -> tuple[Lab, ...]:
    points = course().rubric
    try:
        return points.named(option) if option else points.labs
    except ValueError as error:
        raise fail(error) from None


@export_app.command("markdown")
def export_markdown(
    grade: _GradeFile,
    title: Annotated[str, typer.Option(help="The heading.")] = "Grade",
    out: Annotated[Path | None, typer.Option(help="Where to (default: the terminal).")] = None,
) -> None:
    """Turn a grade.json into Markdown, for a student or a job's summary."""
    from gradebook.export.feedback import grade_markdown, help_blocks

    text = grade_markdown(_read_grade(grade), title)
    put("\n\n".join([text.rstrip("\n"), *help_blocks(course().contact)]) + "\n", out)


def review_class(
    folder: _Class,
    accept: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="STUDENT CRITERION",
            help="I have looked; the points stand. CRITERION may be 'all'; 'all handing-in' is for every student.",
        ),
    ] = None,
    override: Annotated[
        tuple[str, str, str, str] | None,
        typer.Option(
            metavar="STUDENT CRITERION POINTS REASON",
            help="Give these points instead. STUDENT may be 'all': who was graded and has fewer.",
        ),
    ] = None,
    excuse: Annotated[
        tuple[str, str, str] | None,
        typer.Option(metavar="STUDENT LAB REASON", help="Let the student off a lab, like lab2, or off 'all'."),
    ] = None,
    rerun: Annotated[str | None, typer.Option(metavar="STUDENT", help="Grade this submission again.")] = None,
    hold_back: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="STUDENT REASON", help="Keep score and feedback out of all exports for now."),
    ] = None,
    release: Annotated[str | None, typer.Option(metavar="STUDENT", help="Undo --hold-back.")] = None,
    as_: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who decides (default: your login).")] = None,
) -> None:
    """List what a person has to look at, or settle it.

    Exit codes of the list: 0 nothing is open, 2 it cannot be read, 3 something is open. After a decision the exports
    are written again.
    """
    from gradebook.export import review_list
    from gradebook.export.book import Book
    from gradebook.grading.engine import EngineError
    from gradebook.grading.manual_grading import grader_name
    from gradebook.store import deciding
    from gradebox.course.rubric import RubricError
    from gradebox.sandbox.devices import DeviceError

    count = sum(choice is not None for choice in (accept, override, excuse, rerun, hold_back, release))
    if count > 1:
        raise fail("decide one thing at a time: --accept, --override, --excuse, --hold-back, --release or --rerun")
    try:
        if not count:
            book = Book.open(folder)
            echo(review_list.text(book.view, folder))
            raise typer.Exit(3 if book.view.open or book.view.waiting or book.view.broken else 0)
        if rerun is not None:
            echo(_rerun(Book.open(folder), rerun))
            return
        with deciding(folder) as was_stopped:
            if was_stopped:  # after its decision, which may leave nothing to decide now
                Book.open(folder).export(say=note)
        by = grader_name(as_)
        with deciding(folder):
            book = Book.open(folder)
            if accept is not None:
                echo(book.accept(*accept, by))
            elif override is not None:
                echo(book.override(*override, by))
            elif excuse is not None:
                echo(book.excuse(*excuse, by))
            elif hold_back is not None:
                echo(book.hold_back(*hold_back, by))
            elif release is not None:
                echo(book.release(release))
            named = next((choice[0] for choice in (accept, override, excuse, hold_back) if choice), release or "")
            decided = [line.student for line in book.view.lines] if named == "all" else book.keys(named)
            Book.open(folder).export(say=note, decided=decided)
    except OSError as error:
        from gradebook.text_files import cause

        place = f"{error.filename}: " if error.filename else ""
        raise fail(
            f"{place}{cause(error)}. What was decided so far is kept; remove the cause, then write the exports again"
        ) from None
    except (ValueError, RubricError, DeviceError, EngineError) as error:
        raise fail(error) from None


def _rerun(book: Book, student: str) -> str:
    """Grade the submission of a student or a team again; says what came out. Raises `ValueError`."""
    from gradebook.command_name import command
    from gradebook.grade_class import grade_class
    from gradebook.grading.description import ClassRequest
    from gradebook.grading.judge import SandboxJudge
    from gradebook.grading.processes import local_pool
    from gradebox.report.console import Console
    from gradebox.report.document import points

    keys = book.keys(student)
    request = ClassRequest(course=course(), submissions=None, out=book.folder, regrade=keys)
    judge = functools.partial(SandboxJudge, course=course_folder())
    result = grade_class(request, lambda jobs, room, device: local_pool(jobs, room, judge), Console(stderr=True))
    texts = []
    for entry in (row for row in result.students if row.student in keys):
        if entry.taken_at is not None:
            texts.append(
                f"{entry.student}: the files that were read on {entry.taken_at:%Y-%m-%d %H:%M %Z} are graded again. "
                f"To read newer files, run {command()} class with the submissions"
            )
        if entry.score is None or entry.status != "graded":
            nothing = "handed in nothing, so there is nothing to grade again" if entry.status == "missing" else ""
            why = f": {reason}" if (reason := entry.reason or nothing) else ""
            texts.append(f"{entry.student}: {entry.status.replace('_', ' ')}{why}")
        else:
            texts.append(f"{entry.student} has {points(entry.score)} of {points(result.max_score)} points")
    return "\n".join(texts)
