"""Hints in up to three steps for every check of the rubric, kept as data in the `hints.toml` of each lab.

Each check's entry says which task of the lab it pays for (`task`), which functions it runs (`write`), and the steps:
the idea to look at; what to look up and what to measure; the shape of the remedy in words. Never a task's code. Not for
choosing what to do next (`gradebox/guide/`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gradebox.course import Course
from gradebox.rubric import Rubric

FILE = "hints.toml"
MAX_STEPS = 3

_TASK = re.compile(r"([1-9][0-9]?)\.[1-9][0-9]?")
_PLACE = re.compile(r"[a-z_0-9]+\.py [A-Za-z_.]+|REPORT\.md")


class HintError(Exception):
    """A file of hints contradicts the rubric or itself; the message names the check."""


@dataclass(frozen=True)
class Hint:
    """What helps with one check."""

    check: str
    task: str
    """The task that it pays for, "1.2"."""
    write: tuple[str, ...]
    """What it runs, by file and function: "benchmark.py benchmark_matmul", or "REPORT.md"; the one to look at first
    comes first."""
    steps: tuple[str, ...]
    """One to three, each saying more than the one before."""


@cache
def load(course: Course) -> Mapping[str, Hint]:
    """All hints of a course by check.

    Raises:
        HintError: a file does not parse, or an entry lacks something.
    """
    found: dict[str, Hint] = {}
    for lab in course.labs:
        file = course.file(lab, FILE)
        if not file.is_file():
            continue
        try:
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise HintError(f"{file}: not valid TOML: {error}") from None
        for criterion, checks in tables.items():
            for name, table in checks.items():
                hint = _hint(f"{lab.id}.{criterion}.{name}", lab.number, table)
                found[hint.check] = hint
    return found


def exists(course: Course, check: str) -> bool:
    """Whether a check has hints; False, too, where the files cannot be read: a grading goes on without."""
    try:
        return check in load(course)
    except (HintError, OSError):
        return False


def problems(rubric: Rubric, hints: Mapping[str, Hint]) -> list[str]:
    """Checks of the rubric without a hint, and hints without a check."""
    expected = [check.id for check in rubric.checks()]
    return [f"{check} has no hint" for check in expected if check not in hints] + [
        f"{check} is no check of the rubric" for check in hints if check not in expected
    ]


def _hint(check: str, number: int, table: Any) -> Hint:
    if not isinstance(table, dict) or table.keys() != {"task", "write", "steps"}:
        raise HintError(f"{check}: expected the keys task, write and steps")
    task, write, steps = table["task"], table["write"], table["steps"]
    found = _TASK.fullmatch(task)
    if found is None or found[1] != str(number):
        raise HintError(f"{check}: {task!r} is no task of its lab")
    if not write or not all(_PLACE.fullmatch(place) for place in write):
        raise HintError(f"{check}: write names files and functions: {write!r}")
    if not 1 <= len(steps) <= MAX_STEPS or not all(isinstance(step, str) and step.strip() for step in steps):
        raise HintError(f"{check}: one to {MAX_STEPS} steps, each of them a text")
    return Hint(check, task, tuple(write), tuple(steps))
