"""`gpulabs similarity`: which submissions are alike."""

import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gradebook.cli.echo import echo
from gradebook.cli.host import course, handed_out
from gradebook.export.similarity import report, similarity
from gradebook.intake.collect import STORE, Intake, Store
from gradebook.intake.handed_in import IntakeError
from gradebook.intake.lab_folders import LabNames
from gradebook.results import GradebookError, Student
from gradebook.settings import Settings
from gradebook.store import FILE, Gradebook
from gradebook.text_files import cause, some, with_name

_SHOWN = 50
_GONE = "the copy of this submission is no longer there; give the submissions to the command class again"


def report_similarity(
    submissions: Annotated[
        Path, typer.Argument(help="What the command class takes: a folder, an archive, a list; or its --out DIR.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where similarity.html and similarity.csv go (default: the folder similarity in the class's folder, "
            "where the page for graders opens it; else here)."
        ),
    ] = None,
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3.")] = None,
    threshold: Annotated[float, typer.Option(min=0.05, max=1.0, help="Least share that is alike.")] = 0.6,
    stubs: Annotated[
        Path | None, typer.Option(help="What every student was given (default: labs of the course).")
    ] = None,
    archive: Annotated[
        list[Path] | None,
        typer.Option(help="An earlier year, as SUBMISSIONS; give it once for each."),
    ] = None,
) -> None:
    """Compare submissions with each other: a hint for a person to look at, never points.

    Code of the stubs is left out, names and comments are ignored. Exit codes: 0 done, 2 nothing could be compared.
    """
    try:
        labs = None if lab is None else course().rubric.named(lab)
    except ValueError as error:
        _fail(str(error))
    try:
        if stubs is not None:
            _check(stubs)
        with tempfile.TemporaryDirectory() as room:
            folders, refused, names = _submissions(submissions, Path(room) / "class")
            packages = None if labs is None else [chosen.package for chosen in labs]
            left_out: dict[str, list[str]] = {}
            earlier, notes = _earlier(archive or [], submissions, Path(room))
            pairs = similarity.compare(
                folders,
                stubs or handed_out(),
                threshold=threshold,
                excerpts=_SHOWN,
                labs=packages,
                left_out=lambda student, what: left_out.setdefault(what, []).append(student),
                earlier=earlier,
            )
        now = datetime.now().astimezone()
        target = out or (submissions / "similarity" if (submissions / FILE).is_file() else Path("similarity"))
        old = sum(map(len, earlier.values()))
        paths = report.write(
            pairs, target, compared=len(folders), threshold=threshold, now=now, earlier=old, names=names
        )  # fmt: skip
    except (similarity.SimilarityError, IntakeError, GradebookError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {cause(error)}")
    for student in refused:
        echo(f"not compared: {student.student}: {student.reason}")
    for text in notes:
        echo(f"not compared: {text}")
    for what, students in left_out.items():
        called = [with_name(student, names.get(student, "")) for student in students]
        echo(f"not compared: {some(called)}: {what}")
    beside = f" and {old} of earlier years" if old else ""
    things = f"{len(folders)} submission{'' if len(folders) == 1 else 's'}{beside}"
    similar = f"{len(pairs)} pair{'' if len(pairs) == 1 else 's'} at least {threshold:.0%} alike"
    echo(f"{things}, {similar}: hints, look yourself")
    for path in paths:
        echo(f"wrote {path}")


def _earlier(archives: list[Path], submissions: Path, room: Path) -> tuple[dict[str, dict[str, Path]], list[str]]:
    """The submissions of earlier years by the name of their folder, and what of them could not be taken in."""
    by_year: dict[str, dict[str, Path]] = {}
    notes: list[str] = []
    for number, source in enumerate(archives):
        if source.resolve() == submissions.resolve():
            _fail(f"--archive {source} is the class itself; name the folder of an earlier year")
        year = source.resolve().name
        if year in by_year:
            year = f"{source.resolve().parent.name}/{year}"
        folders, refused, _ = _submissions(source, room / f"earlier-{number}")
        by_year[year] = folders
        notes += [f"{year}: {refusal.student}: {refusal.reason}" for refusal in refused]
        if not folders:
            notes.append(f"{year}: nothing. If its folders are years, name each with an --archive of its own")
    return by_year, notes


def _submissions(source: Path, room: Path) -> tuple[dict[str, Path], list[Student], dict[str, str]]:
    """The folder of every student's labs, the students whose submission could not be taken in, and all names."""
    if (source / FILE).is_file():
        store = Store(source / STORE)
        with Gradebook(source, locked=False) as gradebook:
            students = gradebook.students()
    else:
        store = Store(room / STORE)
        labs = course().rubric.labs
        names = LabNames.of(labs, [lab.number for lab in labs] if len(labs) == 1 else [])
        intake = Intake(Settings(), None, store, room / "room", None, names)
        students = intake.take_all(source, lambda name: None)
    taken: dict[str, Path] = {}
    content = {student.student: student.content for student in students}
    for student in students:
        # A team's submission is one submission, not several that are alike.
        if student.content and not any(
            teammate in taken and content[teammate] == student.content for teammate in student.teammates
        ):
            taken[student.student] = store.path(student.content)
    refused = [student for student in students if not student.content and student.status != "missing"]
    gone = {key for key, path in taken.items() if not path.is_dir()}
    refused += [replace(student, reason=_GONE) for student in students if student.student in gone]
    taken = {key: path for key, path in taken.items() if key not in gone}
    return taken, refused, _names(students)


def _names(students: list[Student]) -> dict[str, str]:
    """What to call students next to their keys: a team's by all of it; who is not in the roster may be staff."""
    has_roster = any(student.columns for student in students)
    called = {student.student: student.name for student in students if student.name}
    own = dict(called)
    for student in students:
        if has_roster and not student.columns:
            called[student.student] = f"{student.name}, not in the roster".removeprefix(", ")
        elif student.teammates:
            others = some([own.get(teammate, teammate) for teammate in student.teammates])
            whose = f"team {student.team} with {others}" if student.team else f"with {others}"
            called[student.student] = f"{student.name}, {whose}".removeprefix(", ")
    return called


def _check(stubs: Path) -> None:
    """End with a line if nothing in a folder of stubs would be left out, as where its name is misspelt."""
    packages = [lab.package for lab in course().rubric.labs]
    if not any(file for package in packages for file in (stubs / package).rglob("*.py")):
        what = f"has no code in a folder such as {packages[0]}" if stubs.is_dir() else "is no folder"
        _fail(f"--stubs {stubs} {what}: name the folder in which the labs' folders are, as they were handed out")


def _fail(message: str) -> NoReturn:
    echo(f"error: {message}", err=True)
    raise typer.Exit(2)
