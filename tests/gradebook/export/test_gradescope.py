"""Gradescope: results as its specification has them, and the autograder in its layout."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path

import jsonschema
import pytest

import grader
from gradebook.export import gradescope, gradescope_autograder, view
from gradebook.export.gradescope_autograder import AutograderError
from gradebook.results import LatePenalty
from gradebox.run.grade import CheckReport, IntegrityNote, Outcome
from gradebox.run.overrides import Override
from tests.gradebook.export.classes import HOSTILE, a_class, graded, student

SCHEMA = json.loads(gradescope.SCHEMA_FILE.read_text())
REPORTS = {
    "lab1.benchmark.warmed_up": CheckReport(Outcome.FAILED, HOSTILE, "warm up first"),
    "lab1.memory.every_stage_present": CheckReport(Outcome.BLOCKED, "blocked by another"),
    "lab1.analysis.bound_named": CheckReport(Outcome.NEEDS_REVIEW, "cannot tell"),
}
NOTE = IntegrityNote("open", "/etc/passwd", "benchmark.py:3", "lab1.benchmark.warmed_up")
GIVEN = Override("ada", "lab1.analysis", Decimal("4.5"), "right, in other units")


@pytest.fixture
def results() -> dict[str, object]:
    grade = graded(REPORTS, notes=[NOTE], overrides=[GIVEN])
    return gradescope.results(grade, leaderboard=True)


def test_results_follow_gradescopes_specification(results: dict[str, object]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(gradescope.to_json(results)), SCHEMA)


def test_the_schema_refuses_what_gradescope_does_not_know(results: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**results, "visibility": "secret"}, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"output": "neither score nor tests"}, SCHEMA)


def test_the_tests_add_up_to_the_score(results: dict[str, list[dict[str, float]]]) -> None:
    assert sum(test.get("score", 0) for test in results["tests"]) == results["score"] == 18
    assert sum(test.get("max_score", 0) for test in results["tests"]) == 20


def test_nothing_of_a_submission_is_taken_for_markup(results: dict[str, object]) -> None:
    formats = {results[name] for name in ("output_format", "test_output_format", "test_name_format")}
    assert formats == {"text"}


def test_notes_are_hidden_from_students_and_worth_nothing(results: dict[str, list[dict[str, object]]]) -> None:
    hidden = [test for test in results["tests"] if test["visibility"] == "hidden"]
    assert len(hidden) == 1
    assert "/etc/passwd" in str(hidden[0]["output"])
    assert "score" not in hidden[0]
    assert all("/etc/passwd" not in str(test) for test in results["tests"] if test["visibility"] != "hidden")


def test_a_late_students_results_have_the_final_score() -> None:
    late = LatePenalty(seconds_late=7200, points=Decimal(2), rule="10 % per day, 1 day")
    (line,) = view.of(a_class([student("ada", graded({}), late=late)])).lines
    made = gradescope.student_results(line)
    assert made["score"] == 18
    assert "2 hours late: 2 points deducted" in made["output"]


def test_a_refused_submission_says_why() -> None:
    (line,) = view.of(a_class([student("ada", None, status="refused", score=Decimal(0), reason="a bomb")])).lines
    made = gradescope.student_results(line)
    jsonschema.validate(made, SCHEMA)
    assert "a bomb" in made["output"]


def test_the_zip_holds_the_course_and_no_solutions(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_zip(tmp_path)) as archive:
        names = archive.namelist()
        modes = {name: archive.getinfo(name).external_attr >> 16 & 0o777 for name in names}
    assert {"setup.sh", "run_autograder", "pyproject.toml", "grader/course.toml", "grader/lab1/lab.toml"} <= set(names)
    assert modes["setup.sh"] == modes["run_autograder"] == 0o755
    assert not [
        name for name in names if name.startswith(("solutions", "tests", "labs/", ".")) or "__pycache__" in name
    ]


def test_the_same_course_gives_the_same_zip() -> None:
    assert gradescope_autograder.build(grader.course(), lab="1") == gradescope_autograder.build(
        grader.course(), lab="1"
    )


def test_options_cannot_smuggle_in_a_command() -> None:
    with pytest.raises(AutograderError, match=r"^device vgpu; rm -rf /: expected auto"):
        gradescope_autograder.build(grader.course(), device="vgpu; rm -rf /")


def test_labs_and_devices_that_there_are_not_are_refused() -> None:
    # Otherwise every student's results would say that their submission could not be graded.
    with pytest.raises(AutograderError, match="there is no lab 9"):
        gradescope_autograder.build(grader.course(), lab="9")
    with pytest.raises(AutograderError, match="T5"):
        gradescope_autograder.build(grader.course(), device="vgpu:T5")
    assert gradescope_autograder.build(grader.course(), device="cuda")


def test_a_folder_without_the_course_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AutograderError, match="make the autograder from a checkout"):
        gradescope_autograder.build(grader.course(), root=tmp_path)


def write_zip(folder: Path) -> Path:
    path = folder / "autograder.zip"
    path.write_bytes(gradescope_autograder.build(grader.course(), lab="1", device="vgpu:T4", seed=3))
    return path


def in_its_layout(root: Path) -> Path:
    """What Gradescope makes of the zip, in another folder than /autograder; setup.sh stays undone."""
    source = root / "source"
    with zipfile.ZipFile(write_zip(root)) as archive:
        archive.extractall(source)
    (root / "submission").mkdir()
    (root / "results").mkdir()
    # Tells the autograder's own copy of the course from the one that these tests run in.
    course = source / "grader" / "course.toml"
    course.write_text(course.read_text().replace('version = "1.0"', 'version = "1.0-uploaded"'))
    return root


def run(root: Path) -> dict[str, object]:
    script = root / "source" / "run_autograder"
    environment = {**os.environ, "AUTOGRADER_ROOT": str(root), "AUTOGRADER_PYTHON": sys.executable}
    subprocess.run(["bash", script], env=environment, check=True, cwd=root, capture_output=True, timeout=300)
    made = json.loads((root / "results" / "results.json").read_text())
    jsonschema.validate(made, SCHEMA)
    return dict(made)


@pytest.mark.night
def test_the_autograder_grades_a_submission_in_gradescopes_layout(tmp_path: Path) -> None:
    root = in_its_layout(tmp_path)
    stub = Path(__file__).parents[3] / "labs" / "lab1_gpu_basics"
    lab = root / "submission" / "my work" / "Lab 1"
    lab.mkdir(parents=True)
    (root / "submission" / "README.txt").write_text("next to the wrapper folder")
    for file in stub.glob("*.py"):
        (lab / file.name).write_bytes(file.read_bytes())
    made = run(root)
    assert made["score"] == 0
    assert made["extra_data"]["rubric_version"] == "1.0-uploaded"  # type: ignore[index]
    assert made["extra_data"]["seed"] == 3  # type: ignore[index]
    assert len(made["tests"]) >= 28  # type: ignore[arg-type]
    assert "Task 1.1 is open" in json.dumps(made["tests"])


@pytest.mark.night
def test_the_autograder_says_why_it_cannot_grade(tmp_path: Path) -> None:
    root = in_its_layout(tmp_path)
    (root / "submission" / "essay.txt").write_text("no labs here")
    (root / "results" / "results.json").write_text('{"score": 20}')  # of an earlier run
    made = run(root)
    assert made["score"] == 0
    assert "could not be graded" in str(made["output"])
    assert "the submission holds no lab, only 'essay.txt': hand in the lab's folder" in str(made["output"])


def test_a_grader_that_fails_gives_no_zero(tmp_path: Path) -> None:
    root = in_its_layout(tmp_path)
    shutil.copytree(Path(__file__).parents[3] / "labs" / "lab1_gpu_basics", root / "submission" / "lab1_gpu_basics")
    with (root / "source" / "settings.sh").open("a") as file:
        file.write("DEVICE=cuda\nCUDA_VISIBLE_DEVICES=none\n")
    environment = {**os.environ, "AUTOGRADER_ROOT": str(root), "AUTOGRADER_PYTHON": sys.executable}
    command = ["bash", root / "source" / "run_autograder"]
    done = subprocess.run(command, env=environment, check=False, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "could not grade: " in done.stdout
    assert "no results are written" in done.stdout
    assert not (root / "results" / "results.json").exists()


def test_the_autograder_stays_below_gradescopes_ten_minutes() -> None:
    script = (Path(gradescope_autograder.__file__).parent / "scripts" / "run_autograder").read_text()
    (seconds,) = re.findall(r"TIME_LIMIT=(\d+)", script)
    assert 300 <= int(seconds) <= 560
    assert '--time-limit "$TIME_LIMIT"' in script


def test_the_scripts_are_valid_bash() -> None:
    for name in ("setup.sh", "run_autograder"):
        script = Path(gradescope_autograder.__file__).parent / "scripts" / name
        subprocess.run(["bash", "-n", script], check=True)
