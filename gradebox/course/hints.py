"""Hints in up to three steps for every check of the rubric, kept as data in the `criterion.toml` of each criterion.

Each check's table says which task of the lab it pays for (`task`), which functions it runs (`functions`), and the
`hints`: the idea to look at; what to look up and what to measure; the shape of the remedy in words. Never a task's
code. Not for choosing what to do next (`gradebox/report/next_step/`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from gradebox.common import reading
from gradebox.common.configuration import MAX_STEPS
from gradebox.course.course import Course
from gradebox.course.rubric import CheckTable, Lab, Rubric

STEP_NAMES = ("the idea", "what to look up and measure", "the shape of the remedy")
POINTER = "for a hint: "
"""How the hint of a failed check begins that only says how to ask for one; a page that has the steps leaves it out."""

_TASK = re.compile(r"[1-9]\.[1-9]")
_PLACE = re.compile(r"[a-z_0-9]+\.py [A-Za-z_.]+|REPORT\.md|Dockerfile|requirements\.txt")


class HintError(Exception):
    """A file of hints contradicts the rubric or itself; the message names file and line."""


@dataclass(frozen=True)
class Hint:
    """What helps with one check."""

    check: str
    task: str
    """The task that it pays for, "1.2"; empty in an exercise whose hand-out has no tasks."""
    write: tuple[str, ...]
    """What it runs, by file and function: "benchmark.py benchmark_matmul", or a file that is no code: "REPORT.md"; the
    one to look at first comes first."""
    steps: tuple[str, ...]
    """One to three, each saying more than the one before."""


@cache
def load(course: Course) -> Mapping[str, Hint]:
    """All hints of a course by check.

    Raises:
        HintError: a file does not parse, or an entry lacks something.
    """
    hints: dict[str, Hint] = {}
    for lab in course.all_labs:
        hints |= _of_lab(course, lab)
    return hints


def _of_lab(course: Course, lab: Lab) -> dict[str, Hint]:
    """The hints of the checks that have any."""
    hints: dict[str, Hint] = {}
    for criterion in lab.criteria:
        try:
            document = reading.toml(course.criterion_file(criterion.id))
            for check in criterion.checks:
                place = ("checks", check.id.rpartition(".")[2])
                table = reading.into(CheckTable, document, *place)
                if table.task or table.functions or table.hints:
                    hints[check.id] = Hint(check.id, table.task, table.functions, table.hints)
                    _require_whole(document, lab, hints[check.id], place)
        except reading.ReadingError as error:
            raise HintError(str(error)) from None
    return hints


def place_of(course: Course, check: str) -> str:
    """Where the hints of a check are written, as a message begins."""
    lab, criterion, name = check.split(".")
    return f"{course.criterion_file(f'{lab}.{criterion}')}: [checks.{name}]"


def known(course: Course) -> Mapping[str, Hint]:
    """`load`, or nothing where the files cannot be read: a grade is shown without."""
    try:
        return load(course)
    except (HintError, OSError):
        return {}


def problems(rubrics: Iterable[Rubric], hints: Mapping[str, Hint]) -> list[str]:
    """Checks of the rubrics without a hint, and hints without a check."""
    expected = [check.id for rubric in rubrics for check in rubric.checks()]
    return [f"{check} has no hint" for check in expected if check not in hints] + [
        f"{check} is no check of the rubric" for check in hints if check not in expected
    ]


def _require_whole(document: reading.Document, lab: Lab, hint: Hint, place: tuple[str, str]) -> None:
    """Raise unless a hint can be shown."""
    needed = {"task": hint.task, "functions": hint.write, "hints": hint.steps}
    lacking = [name for name, value in needed.items() if not value and (name != "task" or not _is_task("", lab))]
    if lacking:
        keys = " and ".join(lacking)
        raise document.error(place, f"a check with hints needs the keys task, functions and hints: add {keys}")
    if not _is_task(hint.task, lab):
        raise document.error((*place, "task"), f"{hint.task!r} is no task of its lab")
    if not hint.write or not all(_PLACE.fullmatch(name) for name in hint.write):
        raise document.error((*place, "functions"), f"functions names files and functions: {list(hint.write)}")
    if not 1 <= len(hint.steps) <= MAX_STEPS or not all(step.strip() for step in hint.steps):
        raise document.error((*place, "hints"), f"one to {MAX_STEPS} hints, each of them a text")


def _is_task(number: str, lab: Lab) -> bool:
    """Whether a lab can have a task of this number. Those of an exercise begin with any, or it has no tasks."""
    if not lab.number:
        return not number or _TASK.fullmatch(number) is not None
    return _TASK.fullmatch(number) is not None and number.partition(".")[0] == str(lab.number)
