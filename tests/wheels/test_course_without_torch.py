"""The second course, graded where neither PyTorch nor anything of this course is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import three_questions
from tests.wheels.conftest import ROOT, run, succeed

pytestmark = pytest.mark.night  # by day tests/gradebox grades another course without PyTorch, in this environment

COURSE = ROOT / "examples" / "courses" / "three_questions"


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """The course alone, outside this checkout."""
    return Path(shutil.copytree(COURSE, tmp_path / "three_questions", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    """A folder to write a submission in."""
    folder = tmp_path / "ada"
    (folder / three_questions.PLACE).parent.mkdir(parents=True)
    return folder


def _graded(
    gradebox: Path, course: Path, submission: Path, folder: Path
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """How the command ended, and the outcome of each check."""
    done = run([gradebox / "gradebox", "grade", f"--course={course}", submission, "--report=report"], cwd=folder)
    file = folder / "report" / "grade.json"
    assert file.is_file(), done.stdout + done.stderr
    grade = json.loads(file.read_text())
    rows = [check for lab in grade["labs"] for criterion in lab["criteria"] for check in criterion["checks"]]
    return done, {row["id"].rpartition(".")[2]: row["outcome"] for row in rows}


def test_the_solutions_have_all_points(gradebox: Path, course: Path, tmp_path: Path) -> None:
    done, outcomes = _graded(gradebox, course, course / "solutions", tmp_path)
    assert done.returncode == 0
    assert outcomes == {"rows_normalised": "passed", "moving_average": "passed", "distances": "passed"}
    assert "3/3" in done.stdout


def test_the_stubs_have_none(gradebox: Path, course: Path, tmp_path: Path) -> None:
    done, outcomes = _graded(gradebox, course, course / "labs", tmp_path)
    assert done.returncode == 1
    assert set(outcomes.values()) == {"failed"}


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        ("rows_normalised", "axis=1", "axis=None"),
        pytest.param("moving_average", '"valid"', '"same"', marks=pytest.mark.night),
        pytest.param("distances", "np.sqrt", "", marks=pytest.mark.night),
    ],
)
def test_a_wrong_answer_loses_its_own_points(
    check: str, right: str, wrong: str, gradebox: Path, course: Path, submission: Path, tmp_path: Path
) -> None:
    source = (COURSE / "solutions" / three_questions.PLACE).read_text()
    assert source.count(right) == 1
    (submission / three_questions.PLACE).write_text(source.replace(right, wrong))
    _, outcomes = _graded(gradebox, course, submission, tmp_path)
    assert [name for name, outcome in outcomes.items() if outcome != "passed"] == [check]


def test_files_that_other_tools_would_run_run_nowhere(
    gradebox: Path, course: Path, submission: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    trick = f"from pathlib import Path\nPath({str(mark)!r}).write_text('was here')\n"
    trick += "import gradebox.run.assertions\ngradebox.run.assertions.require_arrays_close = lambda *a, **k: None\n"
    for name in ("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest_plugin.py", "gradebox.py", "numpy.py"):
        (submission / name).write_text(trick)
        (submission / three_questions.PLACE).with_name(name).write_text(trick)
    (submission / "pytest.ini").write_text("[pytest]\naddopts = -p pytest_plugin\n")
    (submission / three_questions.PLACE).write_text(three_questions.module(three_questions.WRONG))
    done, outcomes = _graded(gradebox, course, submission, submission)
    assert done.returncode == 1
    assert outcomes["distances"] == "failed"
    assert not mark.exists()
    succeed([gradebox / "python", "-I", submission / "conftest.py"], cwd=tmp_path)
    assert mark.read_text() == "was here"  # so it would have shown


def test_next_names_the_first_task_and_gives_hints(gradebox: Path, course: Path, tmp_path: Path) -> None:
    what = [gradebox / "gradebox", "next", f"--course={course}", course / "labs", "--hints=1"]
    printed = succeed(what, cwd=tmp_path)
    assert "Task 1.1, Normalise rows" in printed
    assert "how long it is" in printed
