"""A small course that a test can write to disk and change: two labs of plain Python, which import nothing large."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COURSE = """\
title = "Small"
version = "1"
points = 10
pass_percent = 50
labs = ["basics", "further"]
"""
BASICS = """\
title = "Basics"
package = "basics_week1"
points = 6

[numbers]
title = "Numbers"
points = 4
[numbers.checks]
product = 2.5
power = 1.5

[notes]
title = "Notes"
points = 2
[notes.checks]
noted = 2
"""
FURTHER = """\
title = "Further"
package = "further_week2"
points = 4

[sums]
title = "Sums"
points = 4
[sums.checks]
total = 3
noted_too = 1
"""
BASICS_CHECKS = '''\
from gradebox.run.assertions import require_equal
from gradebox.course.criterion import criterion, requires


@criterion("basics.numbers")
class Numbers:
    def test_product(self, submission, generator):
        """products are right."""
        left, right = generator.integer(3, 9), generator.integer(3, 9)
        seen = submission.probe("basics.numbers.product", left=left, right=right)
        require_equal(seen.result, left * right, what="product()")

    @requires("product")
    def test_power(self, submission, generator):
        base = generator.integer(2, 9)
        seen = submission.probe("basics.numbers.power", base=base, exponent=3)
        require_equal(seen.result, base**3, what="power()")


@criterion("basics.notes")
class Notes:
    def test_noted(self, submission):
        """looking at the stack leaves a note"""
        submission.probe("basics.numbers.noted")
'''
BASICS_PROBES = """\
def product(student, *, left, right):
    return {"result": student.module("basics_week1.numbers").product(left, right)}


def power(student, *, base, exponent):
    return {"result": student.module("basics_week1.numbers").power(base, exponent)}


def noted(student):
    student.module("basics_week1.numbers").noted()
    return {}
"""
FURTHER_CHECKS = """\
import time

from gradebox.run.assertions import require_equal
from gradebox.course.criterion import criterion


@criterion("further.sums")
class Sums:
    def test_total(self, submission, generator):
        values = [generator.integer(0, 99) for _ in range(5)]
        require_equal(submission.probe("further.sums.total", numbers=values).result, sum(values), what="total()")

    def test_noted_too(self, submission):
        submission.probe("basics.numbers.noted")
"""
FURTHER_PROBES = """\
def total(student, *, numbers):
    return {"result": student.module("further_week2.sums").total(numbers)}
"""
NUMBERS = """\
def product(left, right):
    return left * right


def power(base, exponent):
    return base**exponent


def noted():
    import sys

    sys._getframe(1)
"""
SUMS = "def total(values):\n    return sum(values)\n"

_counter = itertools.count()


def write_course(parent: Path, *changes: tuple[str, str, str]) -> Path:
    """The course under a name that no other test's has; each change is a file, a text in it and another one."""
    folder = parent / f"small_course_{os.getpid()}_{next(_counter)}"
    texts = {
        "course.toml": COURSE,
        "basics/rubric.toml": BASICS,
        "basics/checks/numbers.py": BASICS_CHECKS,
        "basics/probes/numbers.py": BASICS_PROBES,
        "further/rubric.toml": FURTHER,
        "further/checks/sums.py": FURTHER_CHECKS,
        "further/probes/sums.py": FURTHER_PROBES,
    }
    for place in ("", *(f"{lab}{inner}/" for lab in ("basics", "further") for inner in ("", "/checks", "/probes"))):
        texts[f"{place}__init__.py"] = ""
    for name, old, new in changes:
        assert old in texts[name]
        texts[name] = texts[name].replace(old, new, 1)
    write(folder, texts)
    return folder


def write_submission(parent: Path, numbers: str = NUMBERS, sums: str = SUMS) -> Path:
    """What a student hands in; everything is right unless it is given."""
    folder = parent / "handed-in"
    write(folder, {"basics_week1/numbers.py": numbers, "further_week2/sums.py": sums})
    return folder


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@contextmanager
def importing() -> Iterator[None]:
    """What courses put on the search path and import is taken back."""
    path, modules = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if name.startswith("small_course_"):
                del sys.modules[name]
