"""Every end of a grading is one of the documented exit codes, and what was graded until then is not lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

import grader
from gradebox import launch
from gradebox.common.exit_codes import ExitCode
from gradebox.report import presenter as front
from gradebox.report.document import SCHEMA_FILE, to_json
from gradebox.run import endings
from gradebox.run.grade import Circumstances, grade
from gradebox.run.options import Options
from gradebox.sandbox import Reply, Request, Sandbox, SandboxError
from grader.cli import app
from tests.gradebox.processes import cpu_seconds, descendants, eventually, parents
from tests.gradebox.small_course import SUMS, write_course, write_submission
from tests.proc import is_there, proc
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


ENDLESS = "import time\nbegun = time.monotonic()\nwhile time.monotonic() < begun + 600:\n    pass\n"
UNDER_PYTEST = ("under pytest", "--grade")
GRADE = """\
import sys
from gradebox import launch
from gradebox.run.options import Options
options = Options(course=sys.argv[-3], submission=sys.argv[-2], report=sys.argv[-1], jobs=1)
sys.exit(launch.run(options, ["--grade"] if sys.argv[1] == "pytest" else None))
"""


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Grades a submission whose last lab never ends, in a course whose first check takes a second."""
    changes = ("basics/numbers/checks.py", "from gradebox.run.assertions", "import time\nfrom gradebox.run.assertions")
    slow = ("basics/numbers/checks.py", "seen = ", "time.sleep(1.2)\n        seen = ")
    submission = write_submission(tmp_path, sums=ENDLESS + SUMS)
    return [sys.executable, "-c", GRADE, "alone", str(write_course(tmp_path, changes, slow)), str(submission)]


@pytest.fixture
def small_pytest(small: list[str]) -> list[str]:
    """The same as `pytest --grade` does it."""
    return ["pytest" if word == "alone" else word for word in small]


@pytest.fixture
def ours(tmp_path: Path) -> list[str]:
    """The same with our own command: the first lab, solved, but with an endless loop in what the second check needs."""
    folder = tmp_path / "endless" / "lab1_gpu_basics"
    folder.mkdir(parents=True)
    for file in LAB1.glob("*.py"):
        (folder / file.name).write_text(file.read_text())
    with (folder / "benchmark.py").open("a") as file:
        file.write(f"\n{ENDLESS}")
    return [GPULABS, "grade", str(folder.parent), "--criterion=lab1.benchmark", "--device=vgpu", "--report"]


class Started:
    """A grading that has come to the endless loop."""

    def __init__(self, command: list[str], report: Path) -> None:
        proc()
        self.front = subprocess.Popen(
            [*command, str(report)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._report = report
        assert eventually(self._is_stuck), "the endless loop was never reached"
        self.running = descendants(self.front.pid)
        (self.judge,) = (pid for pid, parent in parents().items() if parent == self.front.pid)

    def end(self) -> tuple[int, str, str]:
        """Exit code and what was printed; every process has ended."""
        output, errors = self.front.communicate(timeout=90)
        assert eventually(lambda: not any(map(is_there, self.running)))
        return self.front.returncode, output, errors

    def _is_stuck(self) -> bool:
        """The first check has passed, and the worker has used CPU time for a while."""
        try:
            passed = "passed" in outcomes(document(self._report))
        except (OSError, ValueError):
            return False
        return passed and any(cpu_seconds(pid) > 1.5 for pid in descendants(self.front.pid)[-1:])


@pytest.mark.parametrize(
    ("number", "course"),
    [
        (signal.SIGINT, "small"),
        *(pytest.param(number, "small", marks=pytest.mark.night) for number in (signal.SIGTERM, signal.SIGHUP)),
        pytest.param(signal.SIGINT, "small_pytest", marks=pytest.mark.night),
        pytest.param(signal.SIGINT, "ours", marks=pytest.mark.night),
    ],
)
def test_an_interrupted_grading_ends_everything_and_keeps_what_it_has(
    number: signal.Signals, course: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    report = tmp_path / "report"
    started = Started(request.getfixturevalue(course), report)
    started.front.send_signal(number)
    code, output, errors = started.end()
    assert code == 2, output + errors
    assert "Traceback" not in output + errors
    assert "incomplete\nThis grading is not over: it was interrupted. Its points are no result." in output
    grade = document(report)
    assert (grade["incomplete"], grade["exit_code"]) == ("it was interrupted", 2)
    assert {"passed", "needs_review"} <= set(outcomes(grade))
    assert "This grading is not over" in (report / "grade.html").read_text()


@pytest.mark.night
def test_a_judge_that_is_killed_leaves_what_it_had_graded(small: list[str], tmp_path: Path) -> None:
    report = tmp_path / "report"
    started = Started(small, report)
    os.kill(started.judge, signal.SIGKILL)
    code, output, errors = started.end()
    assert code == 2, output + errors
    assert "the grader itself was ended from outside (SIGKILL, perhaps for lack of memory)" in errors
    assert f"is in {report / 'grade.json'}, marked incomplete" in errors
    assert document(report)["incomplete"]
    assert "passed" in outcomes(document(report))


@pytest.mark.night
def test_a_grading_whose_caller_is_killed_ends_too(small: list[str], tmp_path: Path) -> None:
    started = Started(small, tmp_path / "report")
    started.front.kill()
    assert started.end()[0] == -signal.SIGKILL
    assert document(tmp_path / "report")["incomplete"] == "it was interrupted"


@pytest.mark.usefixtures("_courses_are_forgotten")
def test_the_next_grading_replaces_an_incomplete_one_and_does_not_compare_with_it(
    options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    report = options.report_folder
    front.grade(options)
    (report / "progress.json").unlink()
    grade = document(report)
    (report / "grade.json").write_text(json.dumps(grade | {"incomplete": "it was interrupted"}))
    capsys.readouterr()
    assert front.grade(options) is ExitCode.PASSED
    assert "since the last run" not in capsys.readouterr().out
    assert document(report)["incomplete"] == ""
    assert front.grade(options) is ExitCode.PASSED
    assert "since the last run: no change" in capsys.readouterr().out


def test_an_incomplete_grade_is_exported_nowhere(tmp_path: Path) -> None:
    here = Circumstances("ada", "0" * 64, "T4", True, "namespaces", 1, 1.0, incomplete="it was interrupted")
    course = grader.course().rubric
    (tmp_path / "grade.json").write_text(to_json(grade(course, course.labs[:1], {}, here)))
    for export in ("gradescope-results", "classroom50-result", "markdown"):
        done = CliRunner().invoke(app, ["export", export, str(tmp_path / "grade.json")])
        assert done.exit_code == 2
        assert "is not over (it was interrupted), so its points are no result" in done.stderr
        assert done.stdout == ""


FRONTS = ["alone", pytest.param("pytest", marks=pytest.mark.night)]
"""Who grades: `gpulabs grade`, or pytest."""


def graded_on_a_small_disk(front: str, course: Path, folder: Path, size: str, report: Path) -> tuple[int, str, str]:
    """With that disk in `folder`, which is also the one for temporary files unless the report is in it."""
    folder.mkdir()
    temporary = {} if report.is_relative_to(folder) else {"TMPDIR": str(folder)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", GRADE, front, str(course), str(write_submission(course.parent)), str(report)],
            cwd=ROOT,
            env={**os.environ, **temporary},
            preexec_fn=on_a_small_disk(folder, size),
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.SubprocessError:
        pytest.skip("this machine allows no mount namespaces")
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("front", FRONTS)
def test_no_room_for_temporary_files_is_one_line_and_exit_code_2(front: str, tmp_path: Path) -> None:
    course, report = write_course(tmp_path), tmp_path / "report"
    code, output, errors = graded_on_a_small_disk(front, course, tmp_path / "small", "4k", report)
    assert code == 2, output + errors
    assert errors.startswith("could not grade: there is no space for a copy of the submission in")
    assert "TMPDIR=/path" in errors
    assert "Traceback" not in output + errors


@pytest.mark.parametrize("front", FRONTS)
def test_no_room_for_the_report_is_said_beside_the_grade_and_exit_code_2(front: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    code, output, errors = graded_on_a_small_disk(front, write_course(tmp_path), small, "4k", small / "report")
    assert code == 2, output + errors
    assert "Grade 10/10" in output
    assert "could not grade: the report cannot be written" in errors
    assert "--grade-report=DIR" in errors


HANGING = """\
import json, sys
from dataclasses import asdict
from gradebox import launch
from gradebox.report import presenter
from gradebox.run.options import Options
presenter._LATE_SHARE, presenter._LATE_SECONDS = 0.2, 0.0
asked = {"course": sys.argv[1], "submission": sys.argv[2], "report": sys.argv[3], "jobs": int(sys.argv[4])}
options = Options(**asked, time_limit=30.0)
sys.exit(launch.judge([json.dumps(asdict(options)), *sys.argv[5:]]))
"""


@pytest.mark.parametrize(
    ("jobs", "under_pytest"),
    [
        pytest.param(1, (), id="alone"),
        pytest.param(2, UNDER_PYTEST, marks=pytest.mark.night, id="pytest"),
        pytest.param(2, (), marks=pytest.mark.night, id="alone, two sandboxes"),
        pytest.param(1, UNDER_PYTEST, marks=pytest.mark.night, id="pytest, one sandbox"),
    ],
)
def test_a_judge_that_hangs_is_ended_soon_after_its_time_limit(
    jobs: int, under_pytest: tuple[str, ...], tmp_path: Path
) -> None:
    course = write_course(tmp_path, ("basics/numbers/checks.py", "seen = ", "while True: pass\n        seen = "))
    command = [sys.executable, "-c", HANGING, str(course), str(write_submission(tmp_path)), str(tmp_path / "report")]
    ended = subprocess.run([*command, str(jobs), *under_pytest], cwd=tmp_path, capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGALRM, (ended.stdout + ended.stderr).decode()


@pytest.mark.usefixtures("_courses_are_forgotten")
@pytest.mark.night
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_time_limit_leaves_out_the_rest_and_still_writes_the_report(jobs: int, tmp_path: Path) -> None:
    options = Options(
        course=str(write_course(tmp_path)),
        submission=str(write_submission(tmp_path, sums=ENDLESS + SUMS)),
        report=str(tmp_path / "report"),
        time_limit=6.0,
        jobs=jobs,
    )
    assert front.grade(options) is ExitCode.NEEDS_REVIEW
    grade = document(options.report_folder)
    messages = {
        check["message"] for lab in grade["labs"] for criterion in lab["criteria"] for check in criterion["checks"]
    }
    assert "left out: the time limit of 6 s for the whole grading was reached" in messages
    assert {"passed", "needs_review"} == set(outcomes(grade))
    assert grade["seconds"] < 60


def breaking_after(count: int) -> type[Sandbox]:
    """Sandboxes that cannot fork, as on Python 3.12 next to a library that forbids it, after so many requests."""

    class Breaks(Sandbox):
        left = count

        def run(self, request: Request) -> Reply:
            if Breaks.left <= 0:
                raise SandboxError(f"the sandbox could not run {request.probe}: RuntimeError: os.fork is unsafe")
            Breaks.left -= 1
            return super().run(request)

    return Breaks


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(
        course=str(write_course(tmp_path, ("course.toml", 'version = "1"', 'version = "1"\nfix = "ask the staff"'))),
        submission=str(write_submission(tmp_path)),
        report=str(tmp_path / "report"),
    )


@pytest.mark.usefixtures("_courses_are_forgotten")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_machine_that_cannot_grade_says_so_at_once(
    jobs: int, options: Options, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gradebox.run.grading.Sandbox", breaking_after(0))
    assert front.grade(replace(options, jobs=jobs)) is ExitCode.COULD_NOT_GRADE
    said = "".join(capfd.readouterr())
    assert "could not grade: this machine cannot run checks: " in said
    assert "os.fork is unsafe" in said
    assert "ask the staff" in said
    assert not options.report_folder.exists()


@pytest.mark.usefixtures("_courses_are_forgotten")
@pytest.mark.parametrize(("jobs", "after"), [(1, 3), (2, 4)])
def test_a_machine_that_breaks_during_a_grading_ends_it_incomplete(
    jobs: int, after: int, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradebox.run.grading.Sandbox", breaking_after(after))
    assert front.grade(replace(options, jobs=jobs)) is ExitCode.COULD_NOT_GRADE
    grade = document(options.report_folder)
    assert grade["incomplete"].startswith("this machine cannot run checks")
    assert "passed" in outcomes(grade)
    assert "failed" not in outcomes(grade)


BREAKING = """\
import json, sys
from dataclasses import asdict
import gradebox.run.grading
from gradebox import launch
from gradebox.run.options import Options
from tests.gradebox.test_ends import UNDER_PYTEST, breaking_after
gradebox.run.grading.Sandbox = breaking_after(int(sys.argv[1]))
options = Options(course=sys.argv[2], submission=sys.argv[3], report=sys.argv[4], jobs=1)
sys.exit(launch.judge([json.dumps(asdict(options)), *UNDER_PYTEST]))
"""


@pytest.mark.night
@pytest.mark.parametrize("after", [0, 3])
def test_a_machine_that_breaks_under_pytest_ends_it_likewise(after: int, options: Options) -> None:
    command = [sys.executable, "-c", BREAKING, str(after), options.course, options.submission, options.report]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == launch._ENDED + ExitCode.COULD_NOT_GRADE, ended.stdout + ended.stderr
    assert "could not grade: this machine cannot run checks: " in ended.stderr
    assert "ask the staff" in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    if after:
        grade = document(options.report_folder)
        assert grade["incomplete"].startswith("this machine cannot run checks")
        assert "passed" in outcomes(grade)
        assert "failed" not in outcomes(grade)
    else:
        assert not options.report_folder.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[Errno 2] No such file or directory: 'data/steps.csv'", "Path(__file__).parent / 'steps.csv'"),
        ("[Errno 2] No such file or directory: 'steps.csv'", "Path(__file__).parent / 'steps.csv'"),
        ("[Errno 2] No such file or directory: '/submission/labs/steps.csv'", ""),
        ("[Errno 2] No such file or directory: 'C:\\\\Users\\\\steps.csv'", ""),
        ("No module named 'steps'", ""),
        (
            "[Errno 30] Read-only file system: '/submission/labs/lab1_a/out.txt'",
            "can only be read while they are graded",
        ),
        ("[Errno 13] Permission denied: '/submission/labs/lab1_a/out.txt'", "Write into the current folder"),
        ("[Errno 13] Permission denied: '/etc/out.txt'", ""),
    ],
)
def test_a_path_that_counts_from_elsewhere_is_explained(text: str, words: str) -> None:
    hint = endings._path_hint(text)
    assert bool(hint) == bool(words)
    assert words in hint
