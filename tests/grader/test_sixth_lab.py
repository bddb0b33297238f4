"""A sixth lab is one folder and one line in `course.toml`, and nothing else: it is graded, selected and guided to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradebox.common.configuration import ROOT
from tests.gradebox.small_course import write

LABS = 'labs = ["lab1", "lab2", "lab3", "lab4", "lab5"]'
FOLDER = {
    "lab.toml": """\
title = "Sorting"
package = "lab6_sorting"
points = 12
criteria = ["order"]
""",
    "order/criterion.toml": """\
title = "Order"
points = 12

[checks.sorted]
points = 8
title = "Sort the values"
task = "6.1"
functions = ["sorting.py order"]
hints = ["which value comes first?", "torch.sort", "return the values, not the places"]

[checks.on_the_gpu]
points = 4
title = "Leave the values where they are"
task = "6.1"
functions = ["sorting.py order"]
hints = ["where does the tensor lie?", "Tensor.device", "leave it where it is"]
""",
    "__init__.py": "",
    "order/__init__.py": "",
    "order/checks.py": """\
from gradebox.run.assertions import require_equal
from gradebox.course.criterion import criterion, requires


@criterion("lab6.order")
class TestOrder:
    def test_sorted(self, submission, generator):
        values = [generator.integer(0, 99) for _ in range(generator.odd(5, 15))]
        require_equal(submission.probe("lab6.order.order", numbers=values).result, sorted(values), what="order()")

    @requires("sorted")
    def test_on_the_gpu(self, submission):
        require_equal(submission.probe("lab6.order.order", numbers=[2, 1]).device, "cuda", what="order().device")
""",
    "order/probes.py": """\
import torch


def order(student, *, numbers):
    found = student.module("lab6_sorting.sorting").order(torch.tensor(numbers, device=student.device))
    return {"result": found.tolist(), "device": found.device.type}
""",
}
RIGHT = "def order(values):\n    return values.sort().values\n"
ON_THE_CPU = "def order(values):\n    return values.cpu().sort().values\n"
UNSORTED = "def order(values):\n    return values\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what grades, with the sixth lab."""
    folder = tmp_path_factory.mktemp("checkout")
    for room in ("gradebox", "gradebook", "grader", "labkit", "vgpu"):
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    write(folder / "grader" / "lab6", FOLDER)
    course = folder / "grader" / "course.toml"
    text = course.read_text()
    assert text.count(LABS) == 1
    course.write_text(text.replace(LABS, LABS.replace("]", ', "lab6"]')))
    return folder


def gpulabs(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(checkout)!r}); from grader.cli import app; app()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("code", "score", "ended"),
    [
        pytest.param(RIGHT, 12, 0, marks=pytest.mark.night),
        (ON_THE_CPU, 8, 1),
        pytest.param(UNSORTED, 0, 1, marks=pytest.mark.night),
    ],
    ids=["right", "CPU", "unsorted"],
)
def test_it_is_graded(code: str, score: int, ended: int, checkout: Path, tmp_path: Path) -> None:
    write(tmp_path / "ada", {"lab6-sorting/sorting.py": code})  # as the hand-out spells folders
    options = ("--lab=6", "--device=vgpu", f"--report={tmp_path / 'report'}")
    done = gpulabs(checkout, "grade", str(tmp_path / "ada"), *options)
    assert done.returncode == ended, done.stdout + done.stderr
    grade: dict[str, Any] = json.loads((tmp_path / "report" / "grade.json").read_text())
    assert (grade["score"], grade["max_score"]) == (score, 12)
    assert [lab["id"] for lab in grade["labs"]] == ["lab6"]
    assert f"Lab 6  Sorting  {score}/12" in done.stdout


def test_it_is_known_wherever_labs_are_named(checkout: Path, tmp_path: Path) -> None:
    assert "which value comes first?" in gpulabs(checkout, "next", "--check", "lab6.order.sorted", "--hints=1").stdout
    said = gpulabs(checkout, "grade", str(tmp_path), "--lab=7", f"--report={tmp_path}").stderr
    assert said.startswith("could not grade: there is no lab 7; the labs are 1, 2, 3, 4, 5, 6; or container")
