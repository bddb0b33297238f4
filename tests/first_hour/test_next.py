"""`gpulabs next` names the right task: with and without a grade, when one is old, and when all is done."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from markupsafe import escape
from typer.testing import CliRunner

import grader
from gradebox import report
from gradebox.course import hints
from gradebox.course.rubric import Lab, Rubric
from gradebox.report import progress
from gradebox.report.next_step.tasks import survey, tasks
from gradebox.run.grade import CheckReport, Circumstances, Outcome, grade
from gradebox.sandbox import copying
from grader.cli import app
from tests.first_hour.conftest import ROOT

FAILED = CheckReport(Outcome.FAILED, "saw 60 ms, expected about 71 µs", "run `warmup` products first")


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of the stubs."""
    shutil.copytree(ROOT / "labs", tmp_path / "labs", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def solved(room: Path) -> Path:
    """The same, with every task done."""
    shutil.rmtree(room / "labs")
    ignored = shutil.ignore_patterns("__pycache__", "*.template.*", "run")
    shutil.copytree(ROOT / "solutions", room / "labs", ignore=ignored)
    return room


Ask = Callable[..., str]


@pytest.fixture
def ask() -> Ask:
    """What the command says."""

    def run(*options: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["next", *options])
        assert result.exit_code == code, result.output
        return result.output

    return run


def report_on(
    room: Path, problems: Mapping[str, CheckReport], labs: tuple[int, ...] = (1, 2, 3, 4, 5), sha: str | None = None
) -> None:
    """A report on the labs as they are, in which everything passes but `problems`."""
    _report(room, grader.course().rubric, problems, grader.course().rubric.select(labs), sha)


def report_on_exercise(room: Path, name: str, problems: Mapping[str, CheckReport]) -> None:
    """The same on an exercise that is graded alone."""
    course = grader.course().rubric_of(name)
    _report(room, course, problems, course.labs, None)


def _report(
    room: Path, course: Rubric, problems: Mapping[str, CheckReport], labs: tuple[Lab, ...], sha: str | None
) -> None:
    if sha is None:
        with tempfile.TemporaryDirectory() as copy:
            sha = copying.write(copying.scan(room / "labs"), Path(copy, "labs"))
    reports = {check.id: problems.get(check.id, CheckReport(Outcome.PASSED)) for check in course.checks()}
    here = Circumstances("labs", sha, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    result = grade(course, labs, reports, here)
    report.write(result, room / "grade-report", progress.read(room / "grade-report", result))


def test_without_a_grade_it_begins_with_the_first_task(room: Path, ask: Ask) -> None:
    said = ask("--hints", "1")
    assert said.startswith("Next: Task 1.1, the machine\n")
    assert re.search(r"labs/lab1_gpu_basics/environment.py:\d+  check_environment \(about \d+ lines\)", said)
    assert re.search(r"labs/lab1_gpu_basics/README.md:\d+", said)
    assert "grade --criterion lab1.benchmark" in said
    assert "1. the idea: Three different programs" in said
    assert "next --check lab1.benchmark.environment_described --hints 2" in said
    assert re.search(r"benchmark_matmul \(labs/lab1_gpu_basics/benchmark.py:\d+\): 8.5 points by itself", said)


def test_the_place_is_that_of_the_todo(room: Path) -> None:
    functions, broken = survey(room / "labs/lab5_production")
    assert not broken
    by_name = {function.name: function for function in functions}
    function = by_name["GPUMonitor.sample"]
    assert "TODO(task 5.3)" in function.path.read_text().splitlines()[function.line - 1]


def test_every_open_task_belongs_to_a_heading_and_every_heading_is_found(room: Path) -> None:
    for lab in grader.course().all_labs:
        headings = {task.number for task in tasks(room / "labs" / lab.package / "README.md")}
        functions, _ = survey(room / "labs" / lab.package)
        assert {function.task for function in functions} <= headings
        assert {hint.task for check, hint in hints.load(grader.course()).items() if check.startswith(f"{lab.id}.")} == (
            headings or {""}
        )


def test_a_check_that_fails_although_it_is_written_comes_first(room: Path, ask: Ask) -> None:
    _write(room / "labs/lab1_gpu_basics/benchmark.py", "benchmark_matmul")
    stub = CheckReport(Outcome.FAILED, "Task 1.1 is open: write check_environment in labs/x.py")
    blocked = CheckReport(Outcome.BLOCKED, "saw 60 ms", blocked_by="lab1.benchmark.warmed_up")
    problems = {"lab1.benchmark.warmed_up": FAILED, "lab1.benchmark.environment_described": stub}
    report_on(room, {**problems, "lab1.measurements.seconds_equal_reference": blocked}, (1,))
    said = ask("--lab", "1")
    named = "'Warm up before it measures' (lab1.benchmark.warmed_up)"
    assert said.startswith(f"Next: {named}, a check that fails although its code is written.")
    assert "2.5 points for one mistake" in said  # what waits for it counts as well
    assert "seen    saw 60 ms, expected about 71 µs" in said
    assert "→ run `warmup` products first" in said
    assert "where   labs/lab1_gpu_basics/benchmark.py:26  benchmark_matmul" in said
    assert "Task 1.1" in said.partition("Or instead")[2]


def test_a_report_and_a_broken_script_come_after_what_is_open(room: Path, ask: Ask) -> None:
    problems = {f"lab3.{name}": FAILED for name in ("setup.debugged_script_ends", "scaling.report_agrees_with_results")}
    report_on(room, problems, (3,))
    assert ask("--lab", "3").startswith("Next: Task 3.1,")


def test_a_report_is_the_last_task_of_a_lab(solved: Path, ask: Ask) -> None:
    report_on(solved, {"lab2.comparison.report_agrees_with_results": FAILED})
    said = ask()
    assert said.startswith("Next: Task 2.4, the report")
    assert "labs/lab2_mixed_precision/REPORT.md" in said


def test_when_all_is_done_it_says_so(solved: Path, ask: Ask) -> None:
    report_on(solved, {})
    said = ask()
    assert said.startswith("Everything that was graded passes.")
    assert "--lab container" in said


def test_all_written_and_nothing_graded_asks_for_a_grade(solved: Path, ask: Ask) -> None:
    assert "Next: a grade" in ask()


def test_labs_that_were_graded_earlier_still_count(solved: Path, ask: Ask) -> None:
    report_on(solved, {"lab2.amp.loss_in_float32": FAILED}, (1, 2))
    report_on(solved, {}, (3, 4, 5))
    assert ask().startswith("Next: 'Compute the loss in float32' (lab2.amp.loss_in_float32),")


def test_a_task_that_was_open_when_its_lab_was_graded_is_no_mistake(solved: Path, ask: Ask) -> None:
    """It was written after that grade, and another lab was graded since."""
    stub = CheckReport(Outcome.FAILED, "Task 2.2 is open: write stable_softmax in labs/x.py (about 4 lines)")
    report_on(solved, {"lab2.stability.softmax_stable": stub}, (2,))
    report_on(solved, {}, (1, 3, 4, 5))
    assert "fails although its code is written" not in ask()


def test_a_report_older_than_the_code_is_told(room: Path, ask: Ask) -> None:
    report_on(room, {}, sha="0" * 64)
    changed = room / "labs/lab1_gpu_basics/profiler.py"
    os.utime(changed, (2**31, 2**31))
    said = ask()
    assert said.startswith("note: the last grade is older than your work (lab1_gpu_basics/profiler.py): grade again")


@pytest.mark.parametrize("text", ["", "{", '{"schema_version": "1.1"}', "[1]"])
def test_a_damaged_report_is_told_and_left_aside(room: Path, ask: Ask, text: str) -> None:
    (room / "grade-report").mkdir()
    (room / "grade-report/grade.json").write_text(text)
    said = ask()
    assert said.startswith("note: grade-report/grade.json cannot be read")
    assert "Next: Task 1.1" in said


def test_a_file_that_python_cannot_read_comes_before_everything(room: Path, ask: Ask) -> None:
    (room / "labs/lab2_mixed_precision/numerics.py").write_text("def f(:\n")
    said = ask()
    assert "fix a file that Python cannot read" in said
    assert "labs/lab2_mixed_precision/numerics.py:1: " in said


def test_nothing_of_a_submission_is_executed(room: Path, ask: Ask) -> None:
    file = room / "labs/lab1_gpu_basics/__init__.py"
    file.write_text("import pathlib\npathlib.Path('executed').touch()\n")
    ask()
    assert not (room / "executed").exists()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_hints_come_in_steps(ask: Ask, steps: int) -> None:
    said = ask("--check", "lab3.accumulation.uneven_counts", "--hints", str(steps))
    assert [f"  {number}. " in said for number in (1, 2, 3)] == [number <= steps for number in (1, 2, 3)]


def test_hints_of_a_criterion_are_those_of_its_checks(ask: Ask) -> None:
    assert ask("--check", "lab3.accumulation").count("' (lab3.accumulation.") == 7


@pytest.mark.parametrize(
    ("exercise", "file", "function", "first"),
    [
        ("kernels", "kernels_exercise/vector_add.py", "vector_add", "Task 6.1, add two vectors"),
        ("sharding", "sharding_exercise/zero.py", "ShardedOptimizer.__init__", "Task 7.1, the optimizer's states"),
    ],
)
def test_an_exercise_is_asked_about_by_its_name(
    room: Path, ask: Ask, exercise: str, file: str, function: str, first: str
) -> None:
    said = ask("--lab", exercise, "--hints", "1")
    assert said.startswith(f"Next: {first}\n")
    assert re.search(rf"where   labs/{file}:\d+  {re.escape(function)} ", said)
    assert f"labs/{exercise}_exercise/README.md:" in said
    assert f"docs/labs/{exercise}.md" in said
    assert f"next --grade --lab {exercise}" in said
    assert f"next --check {exercise}." in said
    assert "  1. the idea: " in said
    assert "lab1" not in said


def test_a_check_of_an_exercise_that_fails_although_it_is_written_comes_first(room: Path, ask: Ask) -> None:
    _write(room / "labs/kernels_exercise/softmax.py", "softmax")
    stub = CheckReport(Outcome.FAILED, "Task 6.1 is open: write vector_add in labs/x.py")
    report_on_exercise(
        room, "kernels", {"kernels.add.equals_reference": stub, "kernels.softmax.equals_reference": FAILED}
    )
    said = ask("--lab", "kernels")
    assert said.startswith("Next: 'Compute the softmax of rows of any width' (kernels.softmax.equals_reference),")
    assert re.search(r"where   labs/kernels_exercise/softmax.py:\d+  softmax\n", said)
    assert "Task 6.1" in said.partition("Or instead")[2]
    assert ask().startswith("Next: Task 1.1,")  # the course's own points are another question


def test_the_report_of_an_exercise_is_its_last_task(solved: Path, ask: Ask) -> None:
    report_on_exercise(solved, "sharding", {"sharding.analysis.report_agrees_with_results": FAILED})
    said = ask("--lab", "sharding")
    assert said.startswith("Next: Task 7.4,")
    assert "labs/sharding_exercise/REPORT.md" in said


def test_an_exercise_that_is_done_or_not_graded_says_so(solved: Path, ask: Ask) -> None:
    for name in ("container", "kernels", "sharding"):
        said = ask("--lab", name)
        assert said.startswith("Nothing is open in the code. Next: a grade")
        assert said.rstrip().endswith(f"grade --lab {name}")
        report_on_exercise(solved, name, {})
        assert ask("--lab", name).startswith("Everything that was graded passes.")


def test_a_folder_with_an_exercise_alone_is_enough(room: Path, ask: Ask) -> None:
    shutil.move(room / "labs" / "kernels_exercise", room / "mine" / "kernels_exercise")
    assert "mine/kernels_exercise/vector_add.py:" in ask("mine", "--lab", "kernels")


@pytest.mark.parametrize(("name", "count"), [("sharding.zero", 7), ("sharding.zero.equals_unsharded", 1)])
def test_hints_of_an_exercise_are_asked_for_like_those_of_labs(ask: Ask, name: str, count: int) -> None:
    said = ask("--check", name, "--hints", "3")
    assert said.count("' (sharding.zero.") == count
    assert [said.count(f"  {number}. ") for number in (1, 2, 3)] == [count] * 3


def test_an_unknown_check_is_refused_with_one_that_was_meant(ask: Ask) -> None:
    said = ask("--check", "lab1.warmed_up", code=2)
    assert "did you mean lab1.benchmark.warmed_up?" in said


@pytest.mark.parametrize(
    ("lab", "says"), [("9", "there is no lab 9"), ("sharing", "or container or kernels or sharding")]
)
def test_a_lab_that_is_not_there_is_refused(room: Path, ask: Ask, lab: str, says: str) -> None:
    assert says in ask("--lab", lab, code=2)


def test_a_folder_that_is_not_there_is_refused(ask: Ask, tmp_path: Path) -> None:
    assert "there is no folder" in ask(str(tmp_path / "nothing"), code=2)


def test_what_fails_of_an_exercise_without_tasks_is_named_with_its_file(room: Path, ask: Ask) -> None:
    last = "container.report.report_agrees_with_checklist"
    report_on_exercise(room, "container", {"container.dockerfile.ordinary_user": FAILED, last: FAILED})
    said = ask("--lab", "container", "--hints", "2")
    assert said.startswith("Next: 'Run as an ordinary user' (container.dockerfile.ordinary_user), a check that fails.")
    assert "where   labs/container_exercise/Dockerfile\n" in said
    assert "  2. what to look up and measure: Ask id" in said
    assert last in said.partition("Or instead")[2]


@pytest.mark.night
def test_a_grade_of_an_exercise_leads_back_to_it(room: Path, ask: Ask) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from grader.cli import app; app()"
    command = [sys.executable, "-P", "-c", program, "grade", "labs", "--lab=container"]
    done = subprocess.run(command, cwd=room, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    (flags,) = re.findall(r"what to do next: .* next (.*)", done.stdout)
    assert flags == "--lab container"
    assert ask(*flags.split()).startswith("Next: 'Build on an image for GPUs' (container.dockerfile.gpu_base_image),")
    page = (room / "grade-report/grade.html").read_text()
    assert "<code>make next LAB=container</code>" in page
    known = hints.load(grader.course())["container.dockerfile.gpu_base_image"]
    assert all(str(escape(step)) in page for step in known.steps)


def _write(file: Path, function: str) -> None:
    """Write the function, wrongly."""
    text = file.read_text()
    start = text.index("raise NotImplementedError(", text.index(f"def {function}("))
    stop = stop if (stop := text.find("\n\n\n", start)) >= 0 else len(text)
    file.write_text(f"{text[:start]}return None{text[stop:]}")


def test_a_misspelt_command_is_told_which_was_meant() -> None:
    said = CliRunner().invoke(app, ["grad"])
    assert said.exit_code == 2
    assert "Did you mean 'grade'" in said.output
