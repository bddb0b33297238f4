"""Writes every file of this checkout that follows from other files: `python -m grader.generated [--check]`.

    solutions/*/README.md      the marked lists of checks of a task (`rubric_table`), from criterion.toml
    labs/                      what students get, from solutions/
    points, hours, reports     the marked tables of pages (`rubric_table`), from lab.toml, criterion.toml and reports/
    figures                    of the README (`figures_table`), from benchmarks/results/
    requirements.toml          a lab's sentences, from docstrings and hand-outs; new ones have no check yet
    grade.schema.json          from the dataclasses of a grade
    docs/rooms/*.svg           from the imports

`make generated` is the command that people type, and a test names it when something is stale. Not for what takes long
to make or needs more than the extra `dev` (notebooks, the site, the matrix of planted bugs), and not for the traps of a
lab: a planted bug names the mistake, and people write what shows.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grader
from gradebox.authoring import release
from gradebox.common.configuration import ROOT
from gradebox.common.texts import printable
from gradebox.course.course import CourseError
from gradebox.report import document
from grader import figures_table, rubric_table

COMMAND = "make generated"


@dataclass(frozen=True)
class Part:
    """Files that follow from others in one way."""

    name: str
    stale: Callable[[], list[str]]
    """What is not as it should be, a line for each file."""
    write: Callable[[], None]


def _texts(name: str, texts: Callable[[], Mapping[Path, str]]) -> Part:
    """A part whose files are texts that can be computed."""

    def changed() -> dict[Path, str]:
        return {
            path: text
            for path, text in texts().items()
            if not path.is_file() or path.read_text(encoding="utf-8") != text
        }

    def write() -> None:
        for path, text in changed().items():
            path.write_text(text, encoding="utf-8")

    return Part(name, lambda: [path.relative_to(ROOT).as_posix() for path in changed()], write)


def _pages() -> Mapping[Path, str]:
    pages = [*sorted((ROOT / "docs" / "labs").glob("*.md")), *(ROOT / name for name in rubric_table.PAGES)]
    texts = {page: rubric_table.with_points(page.read_text(encoding="utf-8")) for page in pages}
    return {page: figures_table.with_figures(text) for page, text in texts.items()}


def _hand_outs() -> Mapping[Path, str]:
    pages = sorted((ROOT / "solutions").glob("*/README.md"))
    return {page: rubric_table.with_checks(page.read_text(encoding="utf-8")) for page in pages}


def problems() -> Iterator[str]:
    """What has to be right before anything can follow from it, a line each."""
    course = grader.course()
    entries = importlib.import_module("tests.requirements.entries")
    for lab in course.all_labs:
        written, listed = (
            set(course.checks(lab)),
            {check.id for criterion in lab.criteria for check in criterion.checks},
        )
        for check in sorted(written ^ listed):
            criterion, _, name = check.rpartition(".")
            file = course.criterion_file(criterion).relative_to(ROOT)
            lacks = (
                f"has no [checks.{name}]" if check in written else f"has [checks.{name}], but there is no test_{name}"
            )
            yield f"{file} {lacks}"
        yield from entries.ambiguous(lab.id)


def _requirements() -> Mapping[Path, str]:
    # Not an import: tests are no part of what is installed.
    entries = importlib.import_module("tests.requirements.entries")
    return {entries.file_of(lab.id): entries.text_of(lab.id) for lab in grader.course().all_labs}


def _schema() -> Mapping[Path, str]:
    return {document.SCHEMA_FILE: json.dumps(document.schema(), indent=2) + "\n"}


def _drawings() -> Mapping[Path, str]:
    draw = importlib.import_module("docs.rooms.draw")
    return {draw.FOLDER / name: text for name, text in draw.drawings().items()}


def _stale_labs() -> list[str]:
    messages = release.check(ROOT / "solutions", ROOT / "labs")
    return [message.replace(f"{ROOT.as_posix()}/", "") for message in messages]


def _write_labs() -> None:
    release.make_labs(ROOT / "solutions", ROOT / "labs")


PARTS = (
    # First: the others read hand-outs.
    _texts("checks in hand-outs", _hand_outs),
    Part("labs", _stale_labs, _write_labs),
    _texts("points, hours, reports and figures in pages", _pages),
    _texts("requirements", _requirements),
    _texts("schema of a grade", _schema),
    _texts("drawings of imports", _drawings),
)


def main() -> int:
    """Write what is stale, or say what is."""
    parser = argparse.ArgumentParser(prog="python -m grader.generated", description="Files that follow from others.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something is stale")
    check: bool = parser.parse_args().check
    try:
        wrong = list(problems())
    except CourseError as error:
        wrong = [str(error)]
    if wrong:
        print(printable("\n".join([*wrong, "nothing is written: fix this first"])), file=sys.stderr)
        return 1
    stale = False
    for part in PARTS:
        if lines := part.stale():
            stale = True
            # Git shows what was written; only who writes nothing needs the difference here.
            shown = lines if check else [line.split("\n")[0].removesuffix(":") for line in lines]
            print(printable("\n".join(f"{part.name}: {line}" for line in shown)))
            if not check:
                part.write()
    if check and stale:
        print(printable(f"{COMMAND} writes them"), file=sys.stderr)
        return 1
    print(printable("nothing is stale" if not stale else "written"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
