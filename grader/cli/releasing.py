"""`gpulabs release`: what students get, made from the solutions."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from gradebook.cli.echo import echo
from gradebox.authoring import release
from gradebox.common.configuration import ROOT
from grader.release import branch as branches
from grader.release import course


def release_labs(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail when something is out of date.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite generated files that were edited.")] = False,
    solutions: Annotated[Path, typer.Option(help="The reference solutions.")] = Path("solutions"),
    labs: Annotated[Path, typer.Option(help="The folder that students get.")] = Path("labs"),
    repository: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Commit a release to the students' git repository instead: main, solutions."),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Make or update this branch of the checkout instead: labs/ with every task solved."
        ),
    ] = None,
    hold_solutions_until: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="No branch solutions before then (2026-12-01, 2026-12-01T18:00+01:00)."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where students clone that repository from; notebooks on Colab do."),
    ] = None,
) -> None:
    """Generate the students' stubs from the solutions, or commit a release to the students' repository."""
    try:
        if branch is not None:
            if check or repository is not None:
                raise release.ReleaseError("--branch NAME goes with neither --check nor --repository")
            _to_branch(branch)
        elif repository is not None:
            _to_repository(repository, hold_solutions_until, address, check=check, force=force)
        elif hold_solutions_until is not None or address is not None:
            raise release.ReleaseError("--hold-solutions-until and --address go with --repository DIR")
        else:
            _to_folder(solutions, labs, check=check, force=force)
    except release.ReleaseError as error:
        echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _to_folder(solutions: Path, labs: Path, *, check: bool, force: bool) -> None:
    if check:
        drift = release.check(solutions, labs)
        for message in drift:
            echo(message)
        if drift:
            echo(f"{len(drift)} files in {labs} do not match {solutions}: run gpulabs release", err=True)
            raise typer.Exit(1)
        echo(f"{labs} matches {solutions}")
        return
    released = release.make_labs(solutions, labs, force=force)
    for name in released.written:
        echo(f"wrote {labs / name}")
    for name in released.removed:
        echo(f"removed {labs / name}")
    echo(f"{released.unchanged} files were up to date")


def _to_branch(name: str) -> None:
    made = branches.make(ROOT, name)
    echo(f"branch {name}: {'committed' if made.is_new else 'up to date'} ({made.commit[:10]})")
    echo(f"go there with: git switch {name}; labs/ then holds the solutions, and make grade shows 100")
    echo("nothing was pushed: who can read the branch can read the solutions")


def _to_repository(folder: Path, hold: str | None, address: str | None, *, check: bool, force: bool) -> None:
    if check:
        drift = course.drift(ROOT, folder)
        for message in drift:
            echo(message)
        if drift:
            echo(f"{len(drift)} files in {folder} are not what a release would make of the course", err=True)
            raise typer.Exit(1)
        echo(f"{folder} matches the course")
        return
    outcome = course.release(
        ROOT, folder, now=datetime.now().astimezone(), hold_until=_moment(hold), address=address, force=force
    )
    said = "committed" if outcome.is_new else "up to date"
    echo(f"branch {course.STUDENTS}: release {outcome.release} {said} ({outcome.commit[:10]})")
    echo(f"branch {course.SOLUTIONS}: {outcome.solutions}")
    if outcome.address is None:
        echo("notebooks: on Colab they do not know where to clone the course from; say it with --address URL")
    echo(f"nothing was pushed: git -C {folder} push origin {course.STUDENTS}")


def _moment(text: str | None) -> datetime | None:
    """A date or a date with a time; without a time zone it is this machine's."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise release.ReleaseError(f"{text!r} is no date; write 2026-12-01 or 2026-12-01T18:00+01:00") from None
