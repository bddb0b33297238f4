"""`pytest --grade` from the shell: what it refuses, what it says, and what a submission cannot make it do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gradebox.report.document import SCHEMA_FILE

ROOT = Path(__file__).parents[2]


def grade(*arguments: str, cwd: Path = ROOT, report: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--grade", "--device=vgpu", *arguments]
    if report:
        command.append(f"--grade-report={report}")
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def document(report: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((report / "grade.json").read_text())
    jsonschema.validate(parsed, json.loads(SCHEMA_FILE.read_text()))
    return parsed


def outcomes(grade: dict[str, Any]) -> dict[str, str]:
    return {
        check["id"]: check["outcome"]
        for lab in grade["labs"]
        for criterion in lab["criteria"]
        for check in criterion["checks"]
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--submission=no/such/folder"], "there is no folder"),
        (["--device=vgpu:Voodoo2"], "Voodoo2"),
        (["--device=tpu"], "expected auto, cuda, vgpu or vgpu:MODEL"),
        (["--lab=9"], "there is no lab 9; the labs are 1, 2, 3, 4, 5"),
        (["--lab=one"], "--lab one: expected numbers"),
        (["--criterion=lab1.memry"], "there is no criterion lab1.memry; the criteria are lab1.benchmark, "),
        (["--lab=1", "--criterion=lab1.memory"], "--lab and --criterion exclude each other"),
        (["tests"], "--grade takes no test paths"),
        (["--grade-seed=-1"], "--grade-seed"),
        (["-n", "2"], "leave out -n"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_graded_is_one_line_and_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = grade(*arguments, report=tmp_path / "report")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "report").exists()


def test_stubs_earn_nothing_and_each_criterion_names_its_task(tmp_path: Path) -> None:
    done = grade("--lab=1", report=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "Grade 0/20  not passed" in done.stdout
    result = document(tmp_path)
    assert set(outcomes(result).values()) <= {"failed", "blocked"}
    for criterion in result["labs"][0]["criteria"]:
        assert "Task 1." in criterion["checks"][0]["message"], criterion["id"]
    assert result["integrity"] == []


def test_the_same_seed_gives_the_same_grade(tmp_path: Path) -> None:
    first = grade("--lab=1", "--submission=solutions", "--grade-seed=5", report=tmp_path / "a")
    second = grade("--lab=1", "--submission", "solutions", "--grade-seed=5", report=tmp_path / "b")
    assert (first.returncode, second.returncode) == (0, 0), first.stdout + second.stdout
    results = [document(tmp_path / name) for name in "ab"]
    for result in results:
        assert (result["score"], result["seed"], result["simulated"]) == (20, 5, True)
        result.pop("seconds")
        for lab in result["labs"]:
            for criterion in lab["criteria"]:
                for check in criterion["checks"]:
                    check.pop("seconds")
    assert results[0] == results[1]


def test_one_criterion_is_graded_after_what_it_builds_on_and_scored_alone(tmp_path: Path) -> None:
    done = grade("--criterion=lab1.measurements", report=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Grade 0/5  of the criteria that were asked for" in done.stdout
    result = document(tmp_path)
    assert [criterion["id"] for lab in result["labs"] for criterion in lab["criteria"]] == ["lab1.measurements"]
    assert set(outcomes(result).values()) == {"blocked"}
    message = result["labs"][0]["criteria"][0]["checks"][0]["message"]
    assert message.startswith("blocked by 'Returns a complete result' (lab1.benchmark.returns_result): "), message
    assert result["labs"][0]["criteria"][0]["checks"][0]["title"] == "Measures the seconds that the GPU really takes"
    assert "· Measures the seconds that the GPU really takes  lab1.measurements.seconds_equal_truth" in done.stdout


HOSTILE = """\
import pathlib
pathlib.Path({marker!r}).write_text("ran in the judge")
"""


@pytest.mark.parametrize("inside", [True, False], ids=["inside the repository", "outside the repository"])
def test_a_submissions_conftest_and_configuration_are_never_executed(
    inside: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "hostile"
    if inside:
        folder = ROOT / "build" / f"hostile-{os.getpid()}"
        request.addfinalizer(lambda: subprocess.run(["rm", "-rf", str(folder)], check=True))
    folder.mkdir(parents=True)
    marker = tmp_path / "marker"
    for name in ("conftest.py", "sitecustomize.py", "usercustomize.py", "torch.py", "numpy.py", "test_lab1.py"):
        (folder / name).write_text(HOSTILE.format(marker=str(marker)))
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = .\naddopts = --maxfail=1\npython_files = *.py\n")
    done = grade("--lab=1", f"--submission={folder}", report=tmp_path / "report")
    assert not marker.exists()
    assert done.returncode == 1, done.stdout + done.stderr
    result = document(tmp_path / "report")
    assert result["score"] == 0
    assert set(outcomes(result).values()) <= {"failed", "blocked"}


def test_overrides_named_with_a_space_still_show_the_grade(tmp_path: Path) -> None:
    """pytest takes the file after the space for a test path, finds another root directory, and is started over."""
    overrides = tmp_path / "given.toml"
    overrides.write_text(
        '[[override]]\nstudent = "stubs"\ncriterion = "lab1.analysis"\npoints = 2\nreason = "shown at the board"\n'
    )
    stubs = tmp_path / "stubs"
    shutil.copytree(ROOT / "labs", stubs)
    done = grade(f"--submission={stubs}", "--lab=1", "--overrides", str(overrides), report=tmp_path / "report")
    assert "given by the instructor instead of 0: shown at the board" in done.stdout
    assert document(tmp_path / "report")["score"] == 2


def test_overrides_inside_the_submission_are_refused(tmp_path: Path) -> None:
    (tmp_path / "overrides.toml").write_text("")
    done = grade(f"--submission={tmp_path}", f"--overrides={tmp_path / 'overrides.toml'}")
    assert done.returncode == 2
    assert "lies in the submission" in done.stderr
