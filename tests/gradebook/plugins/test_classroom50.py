"""Classroom 50: the autograder, what it leaves for the runner, and the rosters of classrooms on GitHub."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import grader
from gradebook.plugins.classroom50 import assignment
from gradebook.plugins.classroom50.assignment import Classroom50Error
from gradebox.run.grade import CheckReport, Outcome
from gradebox.run.overrides import Override
from grader.cli import app
from tests.gradebook.export.classes import HOSTILE, graded

ROOT = Path(__file__).parents[3]
URL = "https://github.com/org/gpu-lab1-ada"
VARIABLES = {
    "CLASSROOM": "gpu", "ASSIGNMENT": "lab1", "ASSIGNMENT_TYPE": "group", "USERNAME": "ada",
    "SUBMISSION_TAG": "submit/2026-06-01T14-32-05Z-a1b2c3d", "COMMIT_URL": f"{URL}/commit/1",
    "RELEASE_URL": f"{URL}/releases/tag/submit%2F1", "REVIEW_URL": f"{URL}/compare/0...1",
}  # fmt: skip
NOW = datetime(2026, 6, 1, 14, 33, 11, tzinfo=UTC)


def require_contract(made: dict[str, Any]) -> None:
    """What `result-v1.schema.json` of Classroom 50 and its collector ask of a result."""
    texts = ("classroom", "assignment", "owner", "commit", "release", "review")
    numbers = ("score", "max-score")
    assert set(made) == {
        *texts, *numbers, "schema", "assignment_type", "submission", "datetime", "graded_at", "tests"
    }  # fmt: skip
    assert made["schema"] == "classroom50/result/v1"
    assert made["assignment_type"] in ("individual", "group")
    assert all(isinstance(made[name], str) and made[name] for name in texts)
    assert made["submission"].startswith("submit/")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["datetime"])
    for scored in (made, *made["tests"]):
        assert all(type(scored[name]) is int for name in numbers)
        assert 0 <= scored["score"] <= scored["max-score"]
    assert all(test["test-name"] and type(test["passed"]) is bool for test in made["tests"])
    assert made["score"] == sum(test["score"] for test in made["tests"])
    assert made["max-score"] == sum(test["max-score"] for test in made["tests"])


def test_a_result_has_whole_numbers_for_every_criterion() -> None:
    grade = graded({"lab1.benchmark.warmed_up": CheckReport(Outcome.FAILED, HOSTILE)})
    made = assignment.result(grade, VARIABLES, NOW)
    require_contract(made)
    many = assignment.parts(grade)
    assert all((check.points * many) % 1 == 0 for check in grader.course().rubric.checks() if "lab1" in check.id)
    assert (made["score"], made["max-score"]) == (19 * many, 20 * many)
    assert [test["passed"] for test in made["tests"]] == [False, True, True, True]
    assert HOSTILE in made["tests"][0]["output"]
    assert (made["owner"], made["assignment_type"], made["datetime"]) == ("ada", "group", "2026-06-01T14:33:11Z")
    assert f"{19 * many} of {20 * many} are 19 of 20 points" in assignment.release_body(grade)


def test_points_that_are_no_whole_part_are_rounded_down() -> None:
    grade = graded({}, overrides=[Override("ada", "lab1.memory", Decimal("4.99"), "by hand")])
    made = assignment.result(grade, VARIABLES, NOW)
    require_contract(made)
    assert made["score"] == 20 * assignment.parts(grade) - 1


def test_the_files_of_an_assignment(tmp_path: Path) -> None:
    arguments = ["export", "classroom50", "--lab", "1", "--device", "cuda", "--runs-on", "self-hosted, gpu"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "lab1")])
    assert done.exit_code == 0, done.output
    names = {path.name: path for path in (tmp_path / "lab1").iterdir()}
    assert set(names) == {"autograder.py", "course.zip", "runtime.json", "settings.json"}
    assert json.loads(names["runtime.json"].read_text()) == {"runs-on": ["self-hosted", "gpu"]}
    assert json.loads(names["settings.json"].read_text())["lab"] == "1"
    assert sum(path.stat().st_size for path in names.values()) < 10 * 2**20
    ordinary = json.loads(assignment.autograder(grader.course())["runtime.json"])
    assert ordinary == {"runs-on": "ubuntu-latest", "python": "3.13"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs_on": "gpu; curl"}, "'gpu; curl' is no label of a runner"),
        ({"runs_on": ",".join("abcdefghijk")}, "11 labels are too many; Classroom 50 takes 10"),
        ({"lab": "9"}, "there is no lab 9"),
        ({"device": "vgpu:X"}, "X"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(Classroom50Error, match=message) as error:
        assignment.autograder(grader.course(), **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


class Checkout:
    """A student's checkout, and the autograder that Classroom 50's runner starts in it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder / "checkout"
        self.folder.mkdir()
        (self.folder / ".classroom50.yaml").write_text("classroom: gpu\n")
        (self.folder / "result.json").write_text('{"score": 1000}')
        self._autograder = folder / "autograder"
        self._autograder.mkdir()
        for name, content in assignment.autograder(grader.course(), lab="1", seed=3, **options).items():
            (self._autograder / name).write_bytes(content)

    def run(self) -> tuple[int, str]:
        environment = {**os.environ, **VARIABLES, "GPULABS_PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "none"}
        command = [sys.executable, self._autograder / "autograder.py"]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, check=False, capture_output=True, text=True, timeout=300
        )
        return done.returncode, done.stdout + done.stderr

    @property
    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "result.json").read_text()))


@pytest.mark.night
def test_the_autograder_grades_a_checkout(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, device="vgpu:T4")
    shutil.copytree(ROOT / "labs" / "lab1_gpu_basics", checkout.folder / "Lab 1")
    code, said = checkout.run()
    assert code == 0, said
    assert "the folder 'Lab 1' was taken as lab1_gpu_basics" in said
    require_contract(checkout.result)
    assert (checkout.result["score"], len(checkout.result["tests"])) == (0, 4)
    assert "0 of 20" in (checkout.folder / "release-body.md").read_text()


@pytest.mark.night
def test_a_checkout_without_labs_has_no_points_and_the_reason(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    (checkout.folder / "labs.7z").touch()
    code, said = checkout.run()
    assert code == 0, said
    require_contract(checkout.result)
    (test,) = checkout.result["tests"]
    assert (test["score"], test["max-score"]) == (0, 40)
    assert "'labs.7z', which is a .7z file, which the grader does not unpack" in test["output"]


def test_a_grader_that_fails_leaves_no_result(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, device="cuda")
    shutil.copytree(ROOT / "labs" / "lab1_gpu_basics", checkout.folder / "lab1_gpu_basics")
    code, said = checkout.run()
    assert (code, "no result is written" in said) == (1, True)
    assert not (checkout.folder / "result.json").exists()
