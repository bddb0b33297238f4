"""`gpulabs class`: many submissions into one gradebook."""

import functools
import shlex
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gradebook import text_files
from gradebook.cli.echo import echo
from gradebook.cli.host import course, folder
from gradebook.cli.plugins import engine_of
from gradebook.command_name import command
from gradebook.export import everything, overview, reviews, view
from gradebook.grade_class import grade_class
from gradebook.grading import checks_load, class_summary
from gradebook.grading.description import ClassRequest
from gradebook.grading.engine import EngineError, OpenEngine
from gradebook.grading.judge import SandboxJudge
from gradebook.grading.processes import local_pool
from gradebook.plugins import ClassRun
from gradebook.results import ClassResult
from gradebook.settings import parse_moment
from gradebox.common.command_line import INTERRUPTED
from gradebox.common.exit_codes import ExitCode
from gradebox.course.rubric import RubricError
from gradebox.report.console import Console
from gradebox.run import import_advice
from gradebox.sandbox.devices import DeviceError

_MANY = 10_000
"""Gradings at the same time where a scheduler decides."""
_LINES = 20
"""So many students get a line each for one reason; of more, these are named in one line."""


def grade_submissions(
    ctx: typer.Context,
    submissions: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of folders, zip or tar files and git repositories; an archive of such a folder; or a list "
            "of repositories (.csv, .toml). Left out: what the last run took in.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the gradebook and all exports go.")] = Path("class-results"),
    roster: Annotated[Path | None, typer.Option(help="Who is in the class: a CSV file.")] = None,
    config: Annotated[Path | None, typer.Option(help="class.toml: deadline, late rules, limits, ...")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Gradings at the same time (default: one more than CPU cores, as far as memory goes; on a real GPU "
            "half as many as cores, one for 6 GiB of the GPU and eight at most; all where other machines grade).",
        ),
    ] = None,
    lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cuda, vgpu or vgpu:MODEL.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The class's seed; drawn once when it is left out.")] = None,
    overrides: Annotated[Path | None, typer.Option(help="Points given by hand.")] = None,
    deadline: Annotated[str | None, typer.Option(help="For example 2026-03-01T23:59+01:00.")] = None,
    commit: Annotated[str | None, typer.Option(help="Commit, tag or branch to grade in every repository.")] = None,
    engine: Annotated[
        str, typer.Option("--on", "--engine", help="Where gradings run: local, or an engine that is a plug-in.")
    ] = "local",
    regrade: Annotated[
        str | None, typer.Option(help="Criteria, labs or students to grade again, for example lab3 or ada,bob.")
    ] = None,
) -> None:
    """Grade a class into a gradebook; what is in it already and has not changed is not graded again.

    May be stopped at any moment: the same command goes on from there.

    Exit codes: 0 everything is graded, 2 could not grade, 3 something is left for a person to look at, 130 interrupted.
    """
    console = Console(stderr=True)
    elsewhere = engine_of(ctx)
    other_machines = elsewhere is not None and elsewhere.elsewhere
    signal.signal(signal.SIGTERM, _interrupt)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    try:
        request = ClassRequest(
            course=course(),
            submissions=submissions,
            out=out,
            configuration=config,
            roster=roster,
            overrides=overrides,
            labs=None if lab is None else tuple(chosen.number for chosen in course().rubric.named(lab)),
            device=device,
            seed=seed,
            deadline=parse_moment(deadline, "--deadline") if deadline else None,
            commit=commit,
            jobs=jobs or (_MANY if other_machines else None),
            loads=None if other_machines else checks_load.require,
            elsewhere=other_machines,
            regrade=tuple(name.strip() for name in regrade.split(",") if name.strip()) if regrade else (),
        )
        opened = _local_engine() if elsewhere is None else elsewhere.open(ClassRun(course(), out, say))
        result = grade_class(request, opened, console)
    except (ValueError, RubricError, DeviceError, EngineError) as error:
        echo(f"could not grade: {error}", err=True)
        raise typer.Exit(int(ExitCode.COULD_NOT_GRADE)) from None
    except (OSError, sqlite3.Error) as error:
        why = text_files.cause(error) if isinstance(error, OSError) else str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            echo(f"could not grade: {error.filename}: {why}; what was graded is kept", err=True)
            raise typer.Exit(int(ExitCode.COULD_NOT_GRADE)) from None
        echo(
            f"could not grade: {out} or the folder for temporary files cannot be written to ({why}); what was graded "
            "is kept: free space, then give the same command again",
            err=True,
        )
        raise typer.Exit(int(ExitCode.COULD_NOT_GRADE)) from None
    except KeyboardInterrupt:
        again = shlex.join(_going_on(sys.argv[1:], ctx.info_name or ""))
        echo(f"stopped; what was graded is kept in {out}. Go on with: {command()} {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(_show(result, out))


def _local_engine() -> OpenEngine:
    """How to open the engine of this machine."""
    judge = functools.partial(SandboxJudge, course=folder())
    return lambda jobs, room, device: local_pool(jobs, room, functools.partial(judge, side_by_side=jobs))


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _going_on(arguments: list[str], name: str) -> list[str]:
    """The command `name` that goes on, without the course, which messages name: what `--regrade` set aside is open."""
    arguments = arguments[arguments.index(name) :] if name in arguments else arguments
    kept: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if before != "--regrade" and argument != "--regrade" and not argument.startswith("--regrade="):
            kept.append(argument)
    return kept


def _misplaced(line: view.Line) -> list[str]:
    """What to do about files and packages that checks did not find, each once."""
    labs = () if line.grade is None else line.grade.labs
    checks = [check for lab in labs for criterion in lab.criteria for check in criterion.checks]
    texts = [
        f"a file may have another name or place: {check.hint}"
        for check in checks
        if import_advice.is_elsewhere(check.message, check.hint)
    ]
    packages = {package for check in checks if (package := import_advice.lacking_package(check.hint))}
    texts += [
        f"{package} is imported and not installed here. If students may use it, install it, and grade again: --regrade"
        for package in sorted(packages)
    ]
    return list(dict.fromkeys(texts))


def _remarks(class_view: view.View) -> Iterator[tuple[str, Sequence[view.Line]]]:
    """What is to be known of files, with all whom it is about; of very many those that are alike once."""
    remarked = class_view.remarked
    kinds: dict[str, list[view.Line]] = {}
    for reason, lines in remarked:
        kinds.setdefault(reason if len(remarked) <= _LINES else overview.alike(lines[0]), []).extend(lines)
    for alike in kinds.values():
        reasons = {line.result.reason for line in alike}
        yield f"{'for example, ' * (len(reasons) > 1)}{alike[0].result.reason}", alike


def _show(result: ClassResult, out: Path) -> int:
    """Say in a few lines what came out, and return the exit code."""
    class_view = view.of(result, reviews.load(out))
    results = [line.result for line in class_view.lines]
    by_status = Counter(student.status for student in results)
    review, refused, not_theirs = (
        {item.student for item in class_view.open if item.kind in kinds}
        for kinds in (("check",), ("refused",), ("withheld", "outdated", "partly", "unfetched"))
    )
    console = Console(highlight=False, soft_wrap=True)
    outside = {line.student for line in class_view.strangers}
    members = [student for student in results if student.student not in outside]
    count = sum(student.status == "graded" for student in members)
    others = f", and {len(outside)} that {'is' if len(outside) == 1 else 'are'} not in the roster" if outside else ""
    console.print(f"{count} of {len(members)} students graded{others}, with seed {result.seed}", markup=False)
    for status, text in (
        ("missing", "handed in nothing"),
        ("refused", "refused"),
        ("no_repository", "no repository"),
        ("could_not_fetch", "could not fetch"),
        ("could_not_grade", "could not be graded; try again with --regrade"),
    ):
        alike: dict[str, list[str]] = {}
        for student in results:
            if student.status == status:
                alike.setdefault(student.reason, []).append(text_files.with_name(student.student, student.name))
        for reason, names in alike.items():
            for named in names if len(names) <= _LINES else [text_files.some(names, most=_LINES)]:
                console.print(f"  {named}: {text}{f': {reason}' if reason else ''}", markup=False)
    if late := [line.who for line in class_view.lines if line.grade is not None and line.result.late is not None]:
        console.print(f"{len(late)} late: {text_files.some(late)}", markup=False)
    if nothing := [line.who for line in class_view.counted if line.result.score == 0]:
        console.print(f"{len(nothing)} graded with 0 points: {text_files.some(nothing)}", markup=False)
    if review:
        console.print(
            f"{len(review)} with checks that need review: {command()} review {shlex.quote(str(out))}", markup=False
        )
    if refused:
        console.print(
            f"{len(refused)} refused, with 0 points; inform the students: {command()} review {shlex.quote(str(out))}",
            markup=False,
        )
    if not_theirs:
        text = "without a certain score (older work, several, a part or none was found), so no export has a 0 for them"
        console.print(f"{len(not_theirs)} {text}: {command()} review {shlex.quote(str(out))}", markup=False)
    chosen = everything.options(class_summary.exports_table(out))
    decided = (*everything.held_back(class_view), *everything.lowering(class_view), *everything.older(class_view))
    decided += tuple(everything.same_files(class_view))
    notices = (*everything.platforms(class_view, chosen), *decided)
    for text in (*notices, *everything.of_manual_grading(class_view, result, out)):
        console.print(text, markup=False)
    for reason, lines in _remarks(class_view):
        console.print(f"  {text_files.some([line.who for line in lines])}: {reason}", markup=False)
    misplaced: dict[str, list[str]] = {}
    for line in class_view.graded:
        for text in _misplaced(line):
            misplaced.setdefault(text, []).append(line.who)
    for text, students in misplaced.items():
        of_all = 1 < len(students) == len(class_view.graded) and "is imported" not in text
        course = ". It is so for all: perhaps a probe names a wrong module (gradebox lint --course)" if of_all else ""
        console.print(f"  {text_files.some(students)}: {text}{course}", markup=False)
    console.print(f"gradebook and exports: {out}", markup=False)
    done = not review and not refused and not not_theirs and not by_status["could_not_grade"]
    return int(ExitCode.PASSED if done else ExitCode.NEEDS_REVIEW)
