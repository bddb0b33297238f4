"""`gpulabs export classroom50` and `gpulabs export classroom50-result`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from gradebook.export import grade_file
from gradebook.plugins import Host
from gradebook.plugins.classroom50 import assignment


def autograder(host: Host) -> Callable[..., None]:
    """The autograder of an assignment."""

    def export_classroom50(
        out: Annotated[Path, typer.Option(help="The assignment's folder, CLASSROOM/autograders/ASSIGNMENT.")],
        lab: Annotated[str | None, typer.Option(help="Only these labs, for example 1,3.")] = None,
        device: Annotated[str, typer.Option(help="auto, cuda, vgpu or vgpu:MODEL.")] = "auto",
        seed: Annotated[
            int | None, typer.Option(help="The same inputs for everybody (default: new ones each time).")
        ] = None,
        runs_on: Annotated[
            str | None,
            typer.Option(help="Labels of a runner of your own, for example self-hosted,gpu (default: GitHub's)."),
        ] = None,
    ) -> None:
        """Write the autograder of an assignment of Classroom 50, and its runtime.json."""
        try:
            files = assignment.autograder(host.course(), lab=lab, device=device, seed=seed, runs_on=runs_on)
        except assignment.Classroom50Error as error:
            raise host.fail(error) from None
        for name, content in files.items():
            host.put(content, out / name)

    return export_classroom50


def result(host: Host) -> Callable[..., None]:
    """What Classroom 50 collects of a submission."""

    def export_classroom50_result(
        grade: Annotated[Path | None, typer.Argument(help="The grade.json of one grading.")] = None,
        failed: Annotated[Path | None, typer.Option(help="Instead: why nothing could be graded.")] = None,
        lab: Annotated[str | None, typer.Option(help="With --failed: the labs that were to be graded.")] = None,
        out: Annotated[Path, typer.Option(help="Where result.json and release-body.md go.")] = Path(),
    ) -> None:
        """Turn a grade.json into the result.json that Classroom 50 collects."""
        if (grade is None) == (failed is None):
            raise host.fail("name a grade.json, or the output of a failed grading with --failed")
        if grade is not None:
            try:
                made = grade_file.load(grade)
            except grade_file.GradeFileError as error:
                raise host.fail(error) from None
            document, body = assignment.result(made, os.environ), assignment.release_body(made)
        else:
            assert failed is not None
            reason, rubric = grade_file.last_line(failed), host.course().rubric
            try:
                labs = rubric.named(lab) if lab else rubric.labs
            except ValueError as error:
                raise host.fail(error) from None
            document, body = assignment.not_graded(reason, labs, os.environ), f"Not graded: {reason}\n"
        host.put(assignment.to_json(document), out / "result.json")
        host.put(body, out / "release-body.md")

    return export_classroom50_result
