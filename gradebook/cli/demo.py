"""The command `demo`: a course with a class of made-up submissions, to be graded in the first ten minutes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from gradebook.cli.echo import echo
from gradebox.common import reading
from gradebox.common.configuration import ROOT

COURSE = ROOT / "examples" / "courses" / "random_walks"
_LAB = Path("lab1_walks", "walks.py")


@dataclass(frozen=True)
class _Student:
    name: str
    what: str
    edits: tuple[tuple[str, str], ...] = ()
    stubs: bool = False
    form: Literal["folder", "zip"] = "folder"
    windows: bool = False
    """Whether the file has the line ends and the mark of byte order of Windows."""
    encoding: str = "utf-8"


@dataclass(frozen=True)
class _File:
    student: tuple[_Student, ...]


def write_demo(
    out: Annotated[Path, typer.Argument(help="A new folder.", show_default=False)] = Path("demo"),
) -> None:
    """Write a small course with a class of ten made-up students, and say how to grade it."""
    try:
        count = make(out)
    except (OSError, ValueError) as error:
        echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    echo(f"wrote {out}: a course, class.toml, roster.csv and the submissions of {count} of 10 students. Now:")
    echo(f"  cd {out}")
    echo("  gradebook --course course class submissions --out autumn --config class.toml")
    echo("then open autumn/exports/class.html; course/README.md says what else there is to try")


def make(out: Path) -> int:
    """Write the demo; how many submissions there are.

    Raises:
        ValueError: the folder is not empty, or the examples are not here.
    """
    if not COURSE.is_dir():
        raise ValueError(f"the examples are not here ({COURSE}): the demo needs a checkout of the repository")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; name a new folder")
    students = reading.into(_File, reading.toml(COURSE / "class" / "students.toml")).student
    ignored = shutil.ignore_patterns("__pycache__", "class")
    shutil.copytree(COURSE, out / "course", ignore=ignored, dirs_exist_ok=True)
    for name in ("class.toml", "roster.csv"):
        shutil.copyfile(COURSE / "class" / name, out / name)
    for student in students:
        _hand_in(student, out / "submissions")
    return len(students)


def _hand_in(student: _Student, submissions: Path) -> None:
    text = (COURSE / ("labs" if student.stubs else "solutions") / _LAB).read_text(encoding="utf-8")
    for old, new in student.edits:
        if old not in text:
            raise ValueError(f"students.toml: {student.name} changes {old!r}, which the solution does not have")
        text = text.replace(old, new)
    data = text.replace("\n", "\r\n").encode("utf-8-sig") if student.windows else text.encode(student.encoding)
    folder = submissions / student.name
    (folder / _LAB).parent.mkdir(parents=True)
    (folder / _LAB).write_bytes(data)
    if student.form == "zip":
        shutil.make_archive(str(folder), "zip", folder)
        shutil.rmtree(folder)
