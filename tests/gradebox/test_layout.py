"""The parts of a criterion: modules or packages of them, what a lab shares, and cases that checks and probes import."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradebook import versions
from gradebox.authoring.code_dependencies import DependencyGraph
from gradebox.authoring.lint import problems
from gradebox.common import layout
from gradebox.course import course as courses
from gradebox.run.grade import Outcome
from gradebox.run.grading import run
from gradebox.sandbox import Request
from gradebox.sandbox.measuring import measured_by
from tests.gradebox.small_course import NUMBERS_CHECKS, NUMBERS_PROBES, write, write_course, write_submission
from tests.gradebox.test_run import order

pytestmark = pytest.mark.usefixtures("_courses_are_forgotten")

CASES = """\
from dataclasses import dataclass

MODULE = "basics_week1.numbers"


@dataclass(frozen=True)
class Factors:
    left: int
    right: int


def factors(generator):
    return Factors(generator.integer(3, 9), generator.integer(3, 9))
"""
POWER = NUMBERS_CHECKS[NUMBERS_CHECKS.index("    @requires") :]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A course in which one criterion has packages for checks and probes, and its lab has a shared folder."""
    folder = write_course(tmp_path)
    numbers, imports = folder / "basics" / "numbers", f"from {folder.name}.basics.numbers.cases import"
    for part in ("checks.py", "probes.py"):
        (numbers / part).unlink()
    checks = NUMBERS_CHECKS.replace(POWER, "").replace("    @requires", "")
    checks = checks.replace(
        "left, right = generator.integer(3, 9), generator.integer(3, 9)", "drawn = factors(generator)"
    )
    checks = checks.replace("left=left, right=right", "left=drawn.left, right=drawn.right")
    checks = checks.replace("left * right, what", "drawn.left * drawn.right, what")
    probes = NUMBERS_PROBES.replace('student.module("basics_week1.numbers").product', "student.module(MODULE).product")
    noted = NUMBERS_PROBES[NUMBERS_PROBES.index("def noted") :]
    write(folder, {
        "basics/numbers/cases.py": CASES,
        "basics/numbers/checks/__init__.py": "",
        "basics/numbers/checks/products.py": f"{imports} factors\n{checks}".replace(
            "basics.numbers.product", "basics.numbers.arithmetic.product"
        ),
        "basics/numbers/checks/powers.py": (
            "from gradebox.run.assertions import require_equal\n"
            "from gradebox.course.criterion import criterion, requires\n\n\n"
            f'@criterion("basics.numbers")\nclass Powers:\n{POWER}'
        ).replace('"basics.numbers.power"', '"basics.numbers.arithmetic.power"'),
        "basics/numbers/probes/__init__.py": "",
        "basics/numbers/probes/arithmetic.py": (
            f"from gradebox.sandbox.measuring import measures\n{imports} MODULE\n\n\n"
            + probes.replace(noted, "").replace("def power", '@measures("time")\ndef power')
        ),
        "basics/shared/__init__.py": "",
        "basics/shared/probes.py": noted,
    })  # fmt: skip
    for file in ("basics/notes/checks.py", "further/sums/checks.py"):
        path = folder / file
        path.write_text(path.read_text().replace("basics.numbers.noted", "basics.shared.noted"))
    return folder


def test_packages_shared_probes_and_cases_are_graded(folder: Path, tmp_path: Path) -> None:
    course = courses.load(folder)
    assert course.environment.preload == (
        "numpy",
        f"{folder.name}.basics.numbers.probes.*",
        f"{folder.name}.basics.shared.probes",
        f"{folder.name}.further.sums.probes",
    )
    grade = run(order(folder, write_submission(tmp_path)))
    assert {check.id: check.message for check in grade.checks if check.outcome is not Outcome.PASSED} == {}
    assert list(problems(course)) == []


def test_what_a_probe_declares_is_found_in_its_module(folder: Path) -> None:
    assert measured_by(folder, "basics.numbers.arithmetic.power") == {"time"}
    assert measured_by(folder, "basics.numbers.arithmetic.product") == frozenset()
    assert measured_by(folder, "basics.shared.noted") == frozenset()


def test_a_criterion_is_graded_again_when_a_file_of_its_parts_changes(folder: Path) -> None:
    course = courses.load(folder)
    before = versions.digests(course)
    for file, criteria in (
        ("basics/numbers/cases.py", {"basics.numbers"}),
        ("basics/numbers/checks/powers.py", {"basics.numbers"}),
        ("basics/numbers/probes/arithmetic.py", {"basics.numbers"}),
        ("basics/shared/probes.py", {"basics.notes", "further.sums"}),
        ("basics/numbers/criterion.toml", set()),
        ("basics/lab.toml", set()),
    ):
        (folder / file).write_text((folder / file).read_text() + "\n# more\nCHANGED = 1\n")
        after = versions.digests(course)
        assert {name for name in after if after[name] != before[name]} == criteria, file
        before = after


def test_what_a_probe_imports_from_cases_counts_as_mentioned(folder: Path) -> None:
    reach = DependencyGraph(courses.load(folder))
    code = reach.read({"basics_week1/numbers.py": b"def product(left, right):\n    return left * right\n"})
    request = Request("basics.numbers.arithmetic.product", params={"left": 1, "right": 2})
    assert ("basics_week1.numbers", "product") in reach.entries(request, code)


def test_a_class_of_checks_belongs_into_its_criterions_folder(folder: Path) -> None:
    write(folder, {"basics/shared/checks.py": NUMBERS_CHECKS})
    course = courses.load(folder)
    course.prepare()
    with pytest.raises(courses.CourseError, match=r"shared/checks\.py:7: basics\.numbers\.product belongs to another"):
        course.checks(course.labs[0])


@pytest.mark.parametrize("place", ["numbers/checks", "numbers/probes", "shared"])
def test_packages_lack_no_init(place: str, folder: Path) -> None:
    (folder / "basics" / place / "__init__.py").unlink()
    with pytest.raises(courses.ReadingError, match=rf"basics/{place} lacks an __init__\.py"):
        courses.load(folder)


def test_names_of_probes_say_where_they_are() -> None:
    assert layout.probe_module("lab1.basics") == "lab1.basics.probes"
    assert layout.probe_module("lab1.basics.sums") == "lab1.basics.probes.sums"
    assert layout.probe_module("lab1.shared") == "lab1.shared.probes"
    assert layout.probe_module("shared.trial") == "shared.probes.trial"
    with pytest.raises(LookupError, match=r"whose name is LAB\.CRITERION\.FUNCTION"):
        layout.probe_module("lab1")
