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
criteria = ["numbers", "notes"]
"""
NUMBERS_CRITERION = """\
title = "Numbers"
points = 4

[checks.product]
points = 2.5
title = "Multiply two numbers"

[checks.power]
points = 1.5
title = "Raise a number to a power"
"""
NOTES_CRITERION = """\
title = "Notes"
points = 2

[checks.noted]
points = 2
title = "Leave a note by looking at the stack"
"""
FURTHER = """\
title = "Further"
package = "further_week2"
points = 4
criteria = ["sums"]
"""
SUMS_CRITERION = """\
title = "Sums"
points = 4

[checks.total]
points = 3
title = "Add the numbers of a list"

[checks.noted_too]
points = 1
title = "Leave another note"
"""
NUMBERS_CHECKS = '''\
from gradebox.run.assertions import require_equal
from gradebox.course.criterion import criterion, requires


@criterion("basics.numbers")
class Numbers:
    def test_product(self, submission, generator):
        """Its title is in `criterion.toml`."""
        left, right = generator.integer(3, 9), generator.integer(3, 9)
        seen = submission.probe("basics.numbers.product", left=left, right=right)
        require_equal(seen.result, left * right, what="product()")

    @requires("product")
    def test_power(self, submission, generator):
        base = generator.integer(2, 9)
        seen = submission.probe("basics.numbers.power", base=base, exponent=3)
        require_equal(seen.result, base**3, what="power()")
'''
NOTES_CHECKS = """\
from gradebox.course.criterion import criterion


@criterion("basics.notes")
class Notes:
    def test_noted(self, submission):
        submission.probe("basics.numbers.noted")
"""
NUMBERS_PROBES = """\
def product(student, *, left, right):
    return {"result": student.module("basics_week1.numbers").product(left, right)}


def power(student, *, base, exponent):
    return {"result": student.module("basics_week1.numbers").power(base, exponent)}


def noted(student):
    student.module("basics_week1.numbers").noted()
    return {}
"""
SUMS_CHECKS = """\
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
SUMS_PROBES = """\
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
        "basics/lab.toml": BASICS,
        "basics/numbers/criterion.toml": NUMBERS_CRITERION,
        "basics/numbers/checks.py": NUMBERS_CHECKS,
        "basics/numbers/probes.py": NUMBERS_PROBES,
        "basics/notes/criterion.toml": NOTES_CRITERION,
        "basics/notes/checks.py": NOTES_CHECKS,
        "further/lab.toml": FURTHER,
        "further/sums/criterion.toml": SUMS_CRITERION,
        "further/sums/checks.py": SUMS_CHECKS,
        "further/sums/probes.py": SUMS_PROBES,
    }
    for place in ("", "basics/", "basics/numbers/", "basics/notes/", "further/", "further/sums/"):
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
