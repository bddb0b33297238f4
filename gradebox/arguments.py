"""Arguments and options that `gradebox` and a course's own command share, as Typer reads them: one text for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradebox.common.configuration import MAX_STEPS
from gradebox.run.options import TIME_LIMIT_SECONDS

Submission = Annotated[Path, typer.Argument(help="The folder to grade.")]
OwnLabs = Annotated[Path, typer.Argument(help="The folder with your labs.")]
Lab = Annotated[
    list[str] | None,
    typer.Option(help="Only these labs, for example 1,3; or an exercise by its name.", metavar="N[,N]"),
]
Criterion = Annotated[
    list[str] | None,
    typer.Option(help="Only these criteria, for example lab3.accumulation; several with commas.", metavar="ID[,ID]"),
]
Seed = Annotated[int | None, typer.Option("--seed", "--grade-seed", help="Repeat a grading with its printed seed.")]
Report = Annotated[Path, typer.Option("--report", "--grade-report", help="Where grade.json and grade.html go.")]
OwnReport = Annotated[Path, typer.Option("--report", "--grade-report", help="Where grade.json lies.")]
Overrides = Annotated[
    Path | None, typer.Option(help="Points given by hand (default: overrides.toml next to the course's folder).")
]
Student = Annotated[str | None, typer.Option(help="Whose overrides apply (default: the folder's name).")]
TimeLimit = Annotated[
    float | None,
    typer.Option(help=f"Seconds for the whole grading (default: {TIME_LIMIT_SECONDS:g}; none on a real GPU)."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Sandboxes side by side (default: per core and 3 GB one; on a real GPU per two cores and 6 GiB of it)."
    ),
]
Hints = Annotated[int, typer.Option(min=0, max=MAX_STEPS, help="So many steps of the hint: 1 idea, 2 method, 3 shape.")]
Check = Annotated[str | None, typer.Option(help="Hints for this check or criterion instead.")]
GradeFirst = Annotated[bool, typer.Option("--grade", help="Grade first (these labs), then say what is next.")]
Asked = Annotated[
    bool,
    typer.Option("--asked", help="Grade when a line on standard input names criteria, and answer in a line of JSON."),
]


def joined(values: list[str] | None) -> str | None:
    """An option that was given several times, as one text with commas; None: never given."""
    return ",".join(values) if values else None
