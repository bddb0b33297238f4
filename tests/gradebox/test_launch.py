"""The judge is a process of its own: nothing of a submission, nor of the current folder, is executed in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradebox import launch
from tests.gradebox.test_pytest_plugin import junit

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CRITERION = "lab1.memory"
GIVEN = f'[[override]]\nstudent = "{{}}"\ncriterion = "{CRITERION}"\npoints = 5\nreason = "I say so"\n'


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What hostile files leave behind when they run."""
    return tmp_path / "it-ran"


@pytest.fixture
def folder(tmp_path: Path, marker: Path) -> Path:
    """What a student handed in: stubs in `labs/`, and hostile files in it, next to it and in folders next to it."""
    top = tmp_path / "handed-in"
    shutil.copytree(ROOT / "labs" / "lab1_gpu_basics", top / "labs" / "lab1_gpu_basics")
    hostile = f"open({str(marker)!r}, 'a').write(__file__ + ' ')\n"
    for place in (top, top / "labs", top / "tests_x", top / "labs" / "tests_x"):
        place.mkdir(exist_ok=True)
        (place / "vgpu").mkdir()
        for name in ("conftest", "json", "torch", "numpy", "sitecustomize", "usercustomize", "evil", "vgpu/__init__"):
            (place / f"{name}.py").write_text(hostile)
        (place / "overrides.toml").write_text(GIVEN.format("labs") + GIVEN.format("handed-in"))
    return top


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, f"--criterion={CRITERION}", "--device=vgpu"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def score(report: Path) -> float:
    points: float = json.loads((report / "grade.json").read_text())["score"]
    return points


@pytest.mark.parametrize(
    ("inside", "command"),
    [
        pytest.param("labs", ("gpulabs", "grade", "."), marks=pytest.mark.night),
        pytest.param("", ("gpulabs", "grade"), marks=pytest.mark.night),
        pytest.param("", ("pytest", "--grade"), marks=pytest.mark.night),
        pytest.param("labs", ("pytest", "--grade", "--submission=."), marks=pytest.mark.night),
    ],
    ids=["gpulabs in the submission", "gpulabs next to it", "pytest next to it", "pytest in the submission"],
)
def test_nothing_of_the_folder_somebody_stands_in_runs_in_the_judge(
    inside: str, command: tuple[str, ...], folder: Path, marker: Path
) -> None:
    done = run(folder / inside, str(BIN / command[0]), *command[1:])
    assert not marker.exists(), marker.read_text()
    assert done.returncode == 1, done.stdout + done.stderr
    assert score(folder / inside / "grade-report") == 0
    assert "given by the instructor" not in done.stdout


@pytest.mark.night
def test_variables_of_python_and_pytest_do_not_reach_the_judge(folder: Path, marker: Path) -> None:
    there = str(folder / "tests_x")
    done = run(
        folder,
        *(str(BIN / "gpulabs"), "grade"),
        PYTEST_ADDOPTS=f"-p evil --rootdir={there}",
        PYTEST_PLUGINS="evil",
        PYTHONSTARTUP=f"{there}/evil.py",
        PYTHONWARNINGS="error",
        PYTHONBREAKPOINT="evil.breakpoint",
    )
    assert not marker.exists(), marker.read_text()
    assert (done.returncode, score(folder / "grade-report")) == (1, 0), done.stdout + done.stderr


def test_an_ini_of_the_submission_that_pytest_has_read_ends_it(folder: Path) -> None:
    """With a space pytest takes the folder for a test path, and reads its ini before any plugin can say no."""
    (folder / "labs" / "pytest.ini").write_text("[pytest]\naddopts = -q\n")
    done = run(ROOT, str(BIN / "pytest"), "--grade", "--submission", str(folder / "labs"), f"--grade-report={folder}/r")
    assert done.returncode == 2
    assert done.stderr.startswith(f"could not grade: pytest has read {folder / 'labs' / 'pytest.ini'}")
    assert not (folder / "r").exists()


def test_a_plugin_that_the_submissions_ini_named_ends_it(folder: Path) -> None:
    for file in (folder / "labs").glob("*.py"):
        file.unlink()  # else pytest itself fails, for want of the real ones
    (folder / "labs" / "evil.py").write_text("import os\nos.chdir('/')\n")
    (folder / "labs" / "pytest.ini").write_text("[pytest]\naddopts = -p evil\npythonpath = .\n")
    done = run(ROOT, str(BIN / "pytest"), "--grade", "--submission", str(folder / "labs"), f"--grade-report={folder}/r")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "could not grade: " in done.stderr
    assert not (folder / "r").exists()


def test_what_python_took_from_the_current_folder_ends_it(folder: Path) -> None:
    """`python -m` searches it first; what it executed may have changed anything."""
    for name in ("json", "torch", "numpy", "conftest"):
        (folder / f"{name}.py").unlink()
    (folder / "plistlib.py").write_text("ran = True\n")
    (folder / "evil.py").write_text("import plistlib\n")
    done = run(folder, sys.executable, "-m", "pytest", "-p", "evil", "--grade")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "could not grade: Python has executed" in done.stderr
    assert not (folder / "grade-report").exists()


@pytest.mark.night
def test_reports_of_pytest_itself_lie_where_the_caller_is(folder: Path) -> None:
    done = run(folder, str(BIN / "pytest"), "--grade", "--junitxml=out/checks.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "lab1.memory.every_stage_present" in junit(folder / "out" / "checks.xml")
    assert "report grade-report/grade.json" in done.stdout


def test_the_search_path_holds_libraries_and_nothing_of_the_submission(tmp_path: Path) -> None:
    submission, library = tmp_path / "labs", tmp_path / "env" / "site-packages"
    for place in (submission / "inner", library, tmp_path / "elsewhere"):
        place.mkdir(parents=True)
    entries = ["", ".", str(tmp_path), str(submission), str(submission / "inner"), str(library)]
    elsewhere = "/usr/lib"
    search_path = launch._search_path([*entries, elsewhere], tmp_path, submission)
    assert search_path == [str(ROOT), str(library), elsewhere]
