"""`pytest --grade` from the shell: what it refuses, what it says, and what a submission cannot make it do."""

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from grader.report.document import SCHEMA_FILE

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
    assert message.startswith("blocked by lab1.benchmark.returns_result: "), message


def _plugin_is_installed() -> bool:
    return any(entry.value == "grader.plugin" for entry in importlib.metadata.entry_points(group="pytest11"))


HOSTILE = """\
import pathlib
pathlib.Path({marker!r}).write_text("ran in the judge")
"""


@pytest.mark.parametrize("form", ["--submission={}", "--submission {}"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside the repository", "outside the repository"])
def test_a_submissions_conftest_and_configuration_are_never_executed(
    form: str, inside: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if " " in form and not _plugin_is_installed():
        pytest.skip("pytest learns of the option in time only where the package is installed: see docs/threat-model.md")
    folder = tmp_path / "hostile"
    if inside:
        folder = ROOT / "build" / f"hostile-{os.getpid()}"
        request.addfinalizer(lambda: subprocess.run(["rm", "-rf", str(folder)], check=True))
    folder.mkdir(parents=True)
    marker = tmp_path / "marker"
    for name in ("conftest.py", "sitecustomize.py", "usercustomize.py", "torch.py", "numpy.py", "test_lab1.py"):
        (folder / name).write_text(HOSTILE.format(marker=str(marker)))
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = .\naddopts = --maxfail=1\npython_files = *.py\n")
    done = grade("--lab=1", *form.format(folder).split(" "), report=tmp_path / "report")
    assert not marker.exists()
    assert done.returncode == 1, done.stdout + done.stderr
    result = document(tmp_path / "report")
    assert result["score"] == 0
    assert set(outcomes(result).values()) <= {"failed", "blocked"}


def test_an_interrupted_grading_ends_everything_it_started(tmp_path: Path) -> None:
    folder = tmp_path / "endless" / "lab1_gpu_basics"
    folder.mkdir(parents=True)
    (folder / "environment.py").write_text("while True: pass\n")
    command = [sys.executable, "-m", "pytest", "--grade", "--device=vgpu", f"--submission={folder.parent}"]
    command.append(f"--grade-report={tmp_path / 'report'}")
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    # The guard, the server, its supervisor and the worker: a check is being carried out.
    while len(descendants(process.pid)) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    running = descendants(process.pid)
    assert len(running) >= 4, "no check was ever carried out"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert not (tmp_path / "report").exists()
    while any(Path(f"/proc/{pid}").exists() for pid in running) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in running if Path(f"/proc/{pid}").exists()] == []


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, by /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    return _all_below(children, pid)


def _all_below(children: dict[int, list[int]], pid: int) -> list[int]:
    below = children.get(pid, [])
    return [*below, *(deeper for child in below for deeper in _all_below(children, child))]


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
