"""Every end of a grading is one of the documented exit codes, and what was graded until then is not lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import grader
from gradebox.configuration import own_configuration
from gradebox.grade import Circumstances, grade
from gradebox.report.document import SCHEMA_FILE, to_json
from gradebox.sandbox import Reply, Request, Sandbox, SandboxError
from tests.small_disk import on_a_small_disk

ROOT = Path(__file__).parents[2]
GPULABS = str(Path(sys.executable).with_name("gpulabs"))
LAB1 = ROOT / "solutions" / "lab1_gpu_basics"


def document(report: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((report / "grade.json").read_text())
    jsonschema.validate(parsed, json.loads(SCHEMA_FILE.read_text()))
    return parsed


def outcomes(grade: dict[str, Any]) -> list[str]:
    return [check["outcome"] for lab in grade["labs"] for criterion in lab["criteria"] for check in criterion["checks"]]


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """The first lab, solved, but with an endless loop at the end of what the second check needs."""
    folder = tmp_path / "endless" / "lab1_gpu_basics"
    folder.mkdir(parents=True)
    for file in LAB1.glob("*.py"):
        (folder / file.name).write_text(file.read_text())
    with (folder / "benchmark.py").open("a") as file:
        file.write("\nwhile True:\n    pass\n")
    return folder.parent


class Started:
    """A grading that has come to the endless loop."""

    def __init__(self, submission: Path, report: Path) -> None:
        command = [
            GPULABS,
            "grade",
            str(submission),
            "--criterion=lab1.benchmark",
            "--device=vgpu",
            f"--report={report}",
        ]
        self.front = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._report = report
        assert self._wait(self._is_stuck), "the endless loop was never reached"
        self.running = descendants(self.front.pid)
        (self.judge,) = (pid for pid, parent in parents().items() if parent == self.front.pid)

    def end(self) -> tuple[int, str, str]:
        """Exit code and what was printed; every process has ended."""
        output, errors = self.front.communicate(timeout=90)
        assert self._wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in self.running))
        return self.front.returncode, output, errors

    def _is_stuck(self) -> bool:
        """The first check has passed, and the worker has used CPU time for a while."""
        try:
            passed = "passed" in outcomes(document(self._report))
        except (OSError, ValueError):
            return False
        return passed and any(cpu_seconds(pid) > 1.5 for pid in descendants(self.front.pid)[-1:])

    @staticmethod
    def _wait(condition: Callable[[], bool], seconds: float = 300.0) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not condition():
            time.sleep(0.1)
        return condition()


def parents() -> dict[int, int]:
    """The parent of every process, by /proc."""
    found: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, the innermost ones last."""
    by_parent = parents()
    found, level = [], [pid]
    while level := sorted(child for child, parent in by_parent.items() if parent in level):
        found += level
    return found


def cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_grading_ends_everything_and_keeps_what_it_has(
    number: signal.Signals, endless: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    started = Started(endless, report)
    started.front.send_signal(number)
    code, output, errors = started.end()
    assert code == 2, output + errors
    assert "Traceback" not in output + errors
    assert "incomplete\nThis grading is not over: it was interrupted. Its points are no result." in output
    grade = document(report)
    assert (grade["incomplete"], grade["exit_code"]) == ("it was interrupted", 2)
    assert {"passed", "needs_review"} <= set(outcomes(grade))
    assert "This grading is not over" in (report / "grade.html").read_text()


def test_a_judge_that_is_killed_leaves_what_it_had_graded(endless: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    started = Started(endless, report)
    os.kill(started.judge, signal.SIGKILL)
    code, output, errors = started.end()
    assert code == 2, output + errors
    assert "the grader itself was ended from outside (SIGKILL, perhaps for lack of memory)" in errors
    assert f"is in {report / 'grade.json'}, marked incomplete" in errors
    assert document(report)["incomplete"]
    assert "passed" in outcomes(document(report))


def test_a_grading_whose_caller_is_killed_ends_too(endless: Path, tmp_path: Path) -> None:
    started = Started(endless, tmp_path / "report")
    started.front.kill()
    assert started.end()[0] == -signal.SIGKILL
    assert document(tmp_path / "report")["incomplete"] == "it was interrupted"


def test_the_next_grading_replaces_an_incomplete_one_and_does_not_compare_with_it(tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.mkdir()
    arguments = [GPULABS, "grade", "labs", "--criterion=lab1.memory", "--device=vgpu", f"--report={report}"]
    subprocess.run(arguments, cwd=ROOT, capture_output=True, check=False)
    (report / "progress.json").unlink()
    grade = document(report)
    (report / "grade.json").write_text(json.dumps(grade | {"incomplete": "it was interrupted"}))
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "since the last run" not in done.stdout
    assert document(report)["incomplete"] == ""


def test_an_incomplete_grade_is_exported_nowhere(tmp_path: Path) -> None:
    here = Circumstances("ada", "0" * 64, "T4", True, "namespaces", 1, 1.0, incomplete="it was interrupted")
    course = grader.course().rubric
    (tmp_path / "grade.json").write_text(to_json(grade(course, course.labs[:1], {}, here)))
    for export in ("gradescope-results", "github-result", "markdown"):
        command = [GPULABS, "export", export, str(tmp_path / "grade.json")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "is not over (it was interrupted), so its points are no result" in done.stderr
        assert done.stdout == ""


def graded_on_a_small_disk(folder: Path, size: str, *options: str, **environment: str) -> tuple[int, str, str]:
    folder.mkdir()
    try:
        done = subprocess.run(
            [GPULABS, "grade", "labs", "--criterion=lab1.memory", "--device=vgpu", *options],
            cwd=ROOT,
            env={**os.environ, **environment},
            preexec_fn=on_a_small_disk(folder, size),
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.SubprocessError:
        pytest.skip("this machine allows no mount namespaces")
    return done.returncode, done.stdout, done.stderr


def test_no_room_for_temporary_files_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    code, output, errors = graded_on_a_small_disk(
        tmp_path / "small", "64k", f"--report={tmp_path / 'report'}", TMPDIR=str(tmp_path / "small")
    )
    assert code == 2, output + errors
    assert errors.startswith("could not grade: there is no room for a copy of the submission in")
    assert "TMPDIR=/path" in errors
    assert "Traceback" not in output + errors


def test_no_room_for_the_report_is_said_beside_the_grade_and_exit_code_2(tmp_path: Path) -> None:
    small = tmp_path / "small"
    code, output, errors = graded_on_a_small_disk(small, "4k", f"--report={small / 'report'}")
    assert code == 2, output + errors
    assert "Grade 0/5" in output
    assert "could not grade: the report cannot be written" in errors
    assert "--grade-report=DIR" in errors


def test_a_time_limit_leaves_out_the_rest_and_still_writes_the_report(tmp_path: Path) -> None:
    command = [GPULABS, "grade", "solutions", "--lab=1", "--device=vgpu", f"--report={tmp_path}", "--time-limit=1.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    grade = document(tmp_path)
    messages = {
        check["message"] for lab in grade["labs"] for criterion in lab["criteria"] for check in criterion["checks"]
    }
    assert "left out: the time limit of 1.5 s for the whole grading was reached" in messages
    assert "needs_review" in outcomes(grade)
    assert grade["seconds"] < 60


@pytest.mark.parametrize("limit", ["0", "-3", "nan"])
def test_a_time_limit_that_is_none_is_refused(limit: str, tmp_path: Path) -> None:
    command = [GPULABS, "grade", "labs", f"--report={tmp_path / 'report'}", f"--time-limit={limit}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"--time-limit {float(limit):g}: expected seconds, more than 0" in done.stderr


class Broken:
    """A sandbox that cannot fork, as on Python 3.12 beside a library that forbids it; from `after` requests on."""

    def __init__(self, sandbox: Sandbox, after: int) -> None:
        self._sandbox, self._left = sandbox, after

    def run(self, request: Request) -> Reply:
        self._left -= 1
        if self._left < 0:
            raise SandboxError(f"the sandbox could not run {request.probe}: RuntimeError: os.fork is unsafe")
        return self._sandbox.run(request)

    def pytest_grade_sandbox(self, folder: Path) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("pytest_"):
            raise AttributeError(name)
        return getattr(self._sandbox, name)


@pytest.fixture(scope="module")
def sandbox() -> Any:
    with Sandbox(ROOT / "solutions") as entered:
        yield entered


def test_a_machine_that_cannot_grade_says_so_at_once(
    sandbox: Sandbox, pytester: pytest.Pytester, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [*own_configuration(), "--grade", f"--submission={ROOT / 'solutions'}", "--device=vgpu", "--lab=1"]
    ended = pytester.inline_run(*arguments, f"--grade-report={tmp_path / 'r'}", plugins=[Broken(sandbox, 0)])
    assert ended.ret == 2
    said = "".join(capfd.readouterr())
    assert "could not grade: this machine cannot run checks: " in said
    assert "os.fork is unsafe" in said
    assert "make doctor" in said
    assert not (tmp_path / "r").exists()


def test_a_machine_that_breaks_during_a_grading_ends_it_incomplete(
    sandbox: Sandbox, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    sandbox.tried.clear()
    arguments = [*own_configuration(), "--grade", f"--submission={ROOT / 'solutions'}", "--device=vgpu", "--lab=1"]
    ended = pytester.inline_run(*arguments, f"--grade-report={tmp_path}", plugins=[Broken(sandbox, 6)])
    assert ended.ret == 2
    grade = document(tmp_path)
    assert grade["incomplete"].startswith("this machine cannot run checks")
    assert "passed" in outcomes(grade)
    assert "failed" not in outcomes(grade)
