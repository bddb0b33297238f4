"""Labs in the older form, with `rubric.toml` and `hints.toml`, are graded until all are converted."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradebook import versions
from gradebox.authoring.lint import problems
from gradebox.course import course as courses
from gradebox.course import hints
from gradebox.course.course import CourseError
from gradebox.run.grade import Outcome
from gradebox.run.grading import run
from tests.gradebox.small_course import (
    NOTES_CHECKS,
    NUMBERS_CHECKS,
    NUMBERS_PROBES,
    write,
    write_course,
    write_submission,
)
from tests.gradebox.test_run import order

pytestmark = pytest.mark.usefixtures("_courses_are_forgotten")

RUBRIC = """\
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
HINTS = '[numbers.product]\ntask = "1.1"\nwrite = ["numbers.py product"]\nsteps = ["Look."]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A course whose first lab has the older form, and whose second one has not."""
    folder = write_course(tmp_path)
    for file in [*folder.glob("basics/*/*"), folder / "basics/lab.toml"]:
        file.unlink()
    for place in ("numbers", "notes"):
        (folder / "basics" / place).rmdir()
    files = {
        "rubric.toml": RUBRIC,
        "hints.toml": HINTS,
        "checks/__init__.py": "",
        "checks/numbers.py": NUMBERS_CHECKS,
        "checks/notes.py": NOTES_CHECKS,
        "probes/__init__.py": "",
        "probes/numbers.py": NUMBERS_PROBES,
    }
    write(folder, {f"basics/{name}": text for name, text in files.items()})
    return folder


def test_both_forms_are_graded_in_one_course(folder: Path, tmp_path: Path) -> None:
    grade = run(order(folder, write_submission(tmp_path)))
    assert {check.outcome for check in grade.checks} == {Outcome.PASSED}
    assert (grade.score, grade.max_score) == (10, 10)
    assert grade.checks[0].title == "Its title is in `criterion.toml`"


def test_both_forms_are_read_for_what_leads_nowhere(folder: Path) -> None:
    assert [line.replace(f"{folder}/", "") for line in problems(courses.load(folder))] == [
        "basics/checks/notes.py:6: basics.notes.noted has no docstring, whose first line is its title in reports",
        "basics/checks/numbers.py:13: basics.numbers.power has no docstring, whose first line is its title in reports",
        "basics/hints.toml: basics.numbers.power has no hint",
        "basics/hints.toml: basics.notes.noted has no hint",
    ]


def test_mistakes_name_the_files_of_the_older_form(folder: Path) -> None:
    write(folder, {"basics/hints.toml": HINTS.replace("product]", "produce]")})
    with pytest.raises(
        hints.HintError, match=r"basics/hints\.toml:1: the rubric has no check numbers\.produce; did you"
    ):
        hints.load(courses.load(folder))
    write(folder, {"basics/checks/numbers.py": NUMBERS_CHECKS.replace("test_power", "test_root")})
    course = courses.load(folder)
    course.prepare()
    with pytest.raises(
        CourseError, match=r"basics/rubric\.toml:10: basics\.numbers\.power has points, but \w+/basics/che"
    ):
        course.checks(course.labs[0])


def test_what_decides_a_criterion_is_found_in_both_forms(folder: Path) -> None:
    course = courses.load(folder)
    before = versions.digests(course)
    for file, criteria in (
        ("basics/probes/numbers.py", {"basics.numbers", "basics.notes", "further.sums"}),
        ("basics/checks/numbers.py", {"basics.numbers"}),
        ("further/sums/probes.py", {"further.sums"}),
    ):
        (folder / file).write_text((folder / file).read_text() + "\nCHANGED = 1\n")
        after = versions.digests(course)
        assert {name for name in after if after[name] != before[name]} == criteria
        before = after
