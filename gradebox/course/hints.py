"""Hints in up to three steps for every check of the rubric, kept as data in the `hints.toml` of each lab and exercise.

Each check's entry says which task of the lab it pays for (`task`), which functions it runs (`write`), and the steps:
the idea to look at; what to look up and what to measure; the shape of the remedy in words. Never a task's code. Not for
choosing what to do next (`gradebox/report/next_step/`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from gradebox.common import reading
from gradebox.common.configuration import MAX_STEPS
from gradebox.course.course import Course
from gradebox.course.rubric import Lab, Rubric

FILE = "hints.toml"
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
    found: dict[str, Hint] = {}
    for lab in course.all_labs:
        file = course.file(lab, FILE)
        if not file.is_file():
            continue
        paid = [tuple(check.id.split(".")[1:]) for one in lab.criteria for check in one.checks]
        try:
            document = reading.toml(file)
            for criterion, checks in document.data.items():
                for name in checks:
                    if (criterion, name) not in paid:
                        near = difflib.get_close_matches(f"{criterion}.{name}", [".".join(one) for one in paid], n=1)
                        meant = f"; did you mean [{near[0]}]?" if near else ""
                        raise document.error((criterion, name), f"the rubric has no check {criterion}.{name}{meant}")
                    found[f"{lab.id}.{criterion}.{name}"] = _hint(document, lab, criterion, name)
        except reading.ReadingError as error:
            raise HintError(str(error)) from None
    return found


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


@dataclass(frozen=True)
class _Entry:
    write: tuple[str, ...]
    steps: tuple[str, ...]
    task: str = ""


def _hint(document: reading.Document, lab: Lab, criterion: str, name: str) -> Hint:
    entry, place = reading.into(_Entry, document, criterion, name), (criterion, name)
    if not _is_task(entry.task, lab):
        raise document.error((*place, "task"), f"{entry.task!r} is no task of its lab")
    if not entry.write or not all(_PLACE.fullmatch(one) for one in entry.write):
        raise document.error((*place, "write"), f"write names files and functions: {list(entry.write)}")
    if not 1 <= len(entry.steps) <= MAX_STEPS or not all(step.strip() for step in entry.steps):
        raise document.error((*place, "steps"), f"one to {MAX_STEPS} steps, each of them a text")
    return Hint(f"{lab.id}.{criterion}.{name}", entry.task, entry.write, entry.steps)


def _is_task(number: str, lab: Lab) -> bool:
    """Whether a lab can have a task of this number. Those of an exercise begin with any, or it has no tasks."""
    if not lab.number:
        return not number or _TASK.fullmatch(number) is not None
    return _TASK.fullmatch(number) is not None and number.partition(".")[0] == str(lab.number)
