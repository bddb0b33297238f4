"""What a change of the grader's code means: which criteria have to be graded again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grader import rubric
from grader.classroom import versions
from grader.configuration import ROOT


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    return versions.digests(rubric.load())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("grader", "labkit", "vgpu"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "criteria"),
    [
        ("grader/checks/test_lab1_memory.py", {"lab1.memory"}),
        # whose checks `lab1.measurements` builds on
        ("grader/checks/test_lab1_benchmark.py", {"lab1.benchmark", "lab1.measurements"}),
        ("grader/checks/lab1_report.py", {"lab1.analysis"}),
        ("grader/probes/lab3_launch.py", {"lab3.setup", "lab3.scaling"}),
        ("grader/report/html.py", set()),
        ("grader/cli/grading.py", set()),
        ("grader/classroom/run.py", set()),
    ],
)
def test_a_changed_file_concerns_the_criteria_that_use_it(
    checkout: Path, before: dict[str, str], file: str, criteria: set[str]
) -> None:
    with (checkout / file).open("a") as changed:
        changed.write("# changed\n")
    after = versions.digests(rubric.load(), checkout)
    assert {name for name in after if after[name] != before[name]} == criteria


@pytest.mark.parametrize("file", ["grader/judge.py", "grader/sandbox/server.py", "vgpu/cost.py", "labkit/results.py"])
def test_what_all_checks_share_concerns_every_criterion(checkout: Path, before: dict[str, str], file: str) -> None:
    with (checkout / file).open("a") as changed:
        changed.write("# changed\n")
    after = versions.digests(rubric.load(), checkout)
    assert all(after[name] != before[name] for name in after)


def test_points_concern_nothing_and_a_new_check_its_criterion(before: dict[str, str]) -> None:
    text = rubric.RUBRIC_FILE.read_text()
    old = "seconds_per_product = 0.5\nall_sizes_compared = 0.5\n"
    assert old in text
    other_points = rubric.parse(text.replace(old, "seconds_per_product = 0.25\nall_sizes_compared = 0.75\n"), Path("x"))
    other_checks = rubric.parse(text.replace(old, "seconds_per_product = 0.5\nnew = 0.5\n"), Path("x"))
    assert versions.digests(other_points) == before
    after = versions.digests(other_checks)
    assert {name for name in after if after[name] != before[name]} == {"lab1.benchmark"}
