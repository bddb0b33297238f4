"""`pytest --grade` from the shell: every check is an item, options of pytest work, and nothing on disk is collected."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gradebox.common.configuration import ROOT
from gradebox.report.document import SCHEMA_FILE
from gradebox.run.options import Options
from tests.by_day import one_in
from tests.gradebox.small_course import NUMBERS, write, write_course, write_submission

CHECKS = ["basics.numbers.product", "basics.numbers.power", "basics.notes.noted", "further.sums.total",
          "further.sums.noted_too"]  # fmt: skip
WRONG = NUMBERS.replace("left * right", "left + right")
CRASHING = NUMBERS.replace("left * right", "left * right.real.imag.nothing")
PLUGIN = """\
from pathlib import Path

def pytest_grade_course():
    return Path({!r})
"""


class Shell:
    """A folder in which somebody types `pytest --grade`, with a plugin that names the small course."""

    def __init__(self, parent: Path) -> None:
        self._course = write_course(parent)
        self.here = parent / "here"
        self.submission = write_submission(self.here)
        self.report = self.here / "grade-report"
        plugin = PLUGIN.format(str(self._course))
        write(parent / "plugins", {"small_plugin.py": plugin, "other.ini": "[pytest]\naddopts = -q\n"})
        self._environment = {
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "gradebox.pytest_plugin,small_plugin",
            "PYTHONPATH": f"{parent / 'plugins'}:{ROOT}",
        }

    def grade(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).with_name("pytest")), "--grade", "--submission=handed-in", *options],
            cwd=self.here,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def items(self, *options: str) -> dict[str, str]:
        """What each item became, by pytest's own report."""
        self.grade("--junitxml=junit.xml", *options)
        return junit(self.here / "junit.xml")

    def outcomes(self) -> dict[str, str]:
        return outcomes(document(self.report))


def junit(file: Path) -> dict[str, str]:
    """Each check with what became of it and its message."""
    messages = {}
    for case in ElementTree.parse(file).iter("testcase"):
        ends = [f"{end.tag}: {end.get('message')}" for end in case if end.tag in ("failure", "error", "skipped")]
        messages[".".join(part for part in (case.get("classname"), case.get("name")) if part)] = "; ".join(ends)
    return messages


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


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_without_an_option_the_grade_is_all_that_is_said(shell: Shell) -> None:
    done = shell.grade()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.strip().startswith("handed-in on CPU")
    assert "Grade 10/10" in done.stdout
    assert shell.outcomes() == dict.fromkeys(CHECKS, "passed")


@pytest.mark.night
def test_verbose_and_junitxml_show_every_check_as_an_item_in_the_rubrics_order(shell: Shell) -> None:
    (shell.submission / "basics_week1" / "numbers.py").write_text(CRASHING)
    done = shell.grade("-v", "--junitxml=junit.xml")
    assert done.returncode == 0, done.stdout + done.stderr  # half of the points pass
    assert "collected 5 items" in done.stdout
    shown = [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(tuple(CHECKS))]
    assert shown == [
        [name, "FAILED" if name in ("basics.numbers.product", "basics.numbers.power") else "PASSED"] for name in CHECKS
    ]
    assert "Grade 6/10" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    items = junit(shell.here / "junit.xml")
    assert list(items) == CHECKS
    assert items["basics.numbers.product"].startswith("failure: ")
    assert "your code raised AttributeError" in items["basics.numbers.product"]
    assert "blocked by 'Multiply two numbers' (basics.numbers.product): " in items["basics.numbers.power"]
    assert items["further.sums.total"] == ""


def test_k_asks_some_checks_after_what_they_build_on(shell: Shell) -> None:
    done = shell.grade("-k", "power or total", "-v")
    shown = [line.split()[0] for line in done.stdout.splitlines() if line.startswith(tuple(CHECKS))]
    assert shown == ["basics.numbers.power", "further.sums.total"]
    assert "3 deselected" in done.stdout
    assert done.returncode == 3  # what was not asked is a person's to judge
    assert shell.outcomes() == {
        name: "passed" if name.rpartition(".")[2] in ("product", "power", "total") else "needs_review"
        for name in CHECKS
    }


@pytest.mark.night
def test_x_stops_at_the_first_check_that_fails(shell: Shell) -> None:
    (shell.submission / "basics_week1" / "numbers.py").write_text(WRONG)
    done = shell.grade("-x", "-v")
    shown = [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(tuple(CHECKS))]
    assert shown == [["basics.numbers.product", "FAILED"]]
    assert done.returncode == 2
    assert "This grading is not over: stopping after 1 failures. Its points are no result." in done.stdout
    assert document(shell.report)["incomplete"] == "stopping after 1 failures"
    assert shell.outcomes()["basics.numbers.product"] == "failed"
    assert "Traceback" not in done.stdout + done.stderr


def test_collect_only_lists_the_checks_and_grades_nothing(shell: Shell) -> None:
    done = shell.grade("--collect-only", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith(("basics.", "further."))] == CHECKS
    assert "Grade" not in done.stdout
    assert not shell.report.exists()


HOSTILE = "import pathlib\npathlib.Path({!r}).write_text('ran')\ndef test_theirs():\n    pass\n"


def test_nothing_on_disk_is_collected_or_configures_pytest(shell: Shell, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    names = ("conftest.py", "test_theirs.py", "sitecustomize.py", "plugin.py")
    ini = "[pytest]\ntestpaths = .\npython_files = *.py\naddopts = -p no:terminal\n"
    for place in ("", "handed-in", "handed-in/basics_week1", "tests"):
        write(shell.here / place, dict.fromkeys(names, HOSTILE.format(str(marker))))
    for place in ("handed-in/basics_week1", "tests"):  # where a person's own pytest does not read it
        write(shell.here / place, {"pytest.ini": ini})
    assert list(shell.items()) == CHECKS
    assert not marker.exists()
    assert shell.outcomes() == dict.fromkeys(CHECKS, "passed")


@pytest.mark.parametrize(
    ("options", "said"),
    one_in(
        3,
        [
            (("handed-in",), "--grade takes no test paths, but got handed-in; name the folder as --submission=DIR"),
            (("-c", "{plugins}/other.ini"), "--grade needs its own configuration: leave out -c and --rootdir"),
            (("--lab=9",), "there is no lab 9; the labs are 1, 2"),
            (("--device=tpu",), "device tpu: this course runs on the CPU; expected auto or cpu"),
        ],
    ),
    ids=str,
)
def test_what_cannot_be_graded_is_one_line_and_exit_code_2(options: tuple[str, ...], said: str, shell: Shell) -> None:
    done = shell.grade(*(option.format(plugins=shell.here.parent / "plugins") for option in options))
    assert done.returncode == 2
    assert done.stderr.strip() == f"could not grade: {said}"
    assert "Traceback" not in done.stdout + done.stderr
    assert not shell.report.exists()


@pytest.mark.night
def test_points_given_by_hand_are_read_from_where_the_option_says(shell: Shell, tmp_path: Path) -> None:
    overrides = '[[override]]\nstudent = "ada"\ncriterion = "basics.notes"\npoints = 0\nreason = "copied"\n'
    write(tmp_path / "staff", {"given.toml": overrides})
    done = shell.grade("--overrides", str(tmp_path / "staff" / "given.toml"), "--student", "ada")
    assert "given by the instructor instead of" in done.stdout, done.stdout + done.stderr
    assert "Grade 10/10" not in done.stdout


TYPED = """\
import json, sys
from dataclasses import asdict
import pytest
from gradebox import launch
from grader.cli import app
launch.run = lambda options, arguments=None: print(json.dumps(asdict(options)), file=sys.stderr) or 0
front, *typed = sys.argv[1:]
pytest.main(["--grade", "--submission", "mine", *typed]) if front == "pytest" else app(["grade", "mine", *typed])
"""


def test_every_option_means_the_same_to_both_commands(tmp_path: Path) -> None:
    typed = ["--lab", "1", "--lab", "2,3", "--criterion", "lab1.memory", "--criterion", "lab1.analysis"]
    typed += ["--device", "vgpu:H100", "--overrides", "given.toml"]
    typed += ["--student", "ada", "--time-limit", "77", "--grade-seed", "5", "--grade-report", "elsewhere"]
    options = []
    for front in ("gpulabs", "pytest"):
        command = [sys.executable, "-c", TYPED, front, *typed]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        options.append(json.loads(done.stderr))
    assert options[0] == options[1]
    assert (options[0]["lab"], options[0]["criterion"]) == ("1,2,3", "lab1.memory,lab1.analysis")  # each given twice
    nothing = asdict(Options(course=options[0]["course"]))
    same = [name for name, value in nothing.items() if options[0][name] == value]
    assert same == ["course", "jobs", "origin"], "an option that this test does not give"


@pytest.mark.night
def test_a_hostile_submission_inside_this_checkout_runs_nothing_before_the_judge(tmp_path: Path) -> None:
    marker, folder = tmp_path / "marker", ROOT / "build" / f"hostile-{os.getpid()}"
    names = ("conftest.py", "test_theirs.py", "sitecustomize.py", "lab1_gpu_basics/conftest.py")
    write(folder, dict.fromkeys(names, HOSTILE.format(str(marker))))
    write(folder, {"lab1_gpu_basics/benchmark.py": "", "lab1_gpu_basics/pytest.ini": "[pytest]\naddopts = -p plugin\n"})
    try:
        done = ours("--lab=1", f"--submission={folder.relative_to(ROOT)}", f"--grade-report={tmp_path / 'report'}")
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert not marker.exists()


def test_without_a_course_there_is_nothing_to_grade(shell: Shell) -> None:
    shell._environment["PYTEST_PLUGINS"] = "gradebox.pytest_plugin"
    done = shell.grade()
    assert done.returncode == 2
    assert done.stderr.startswith("could not grade: no course is installed that could be graded")


def ours(*options: str) -> subprocess.CompletedProcess[str]:
    """This course's `pytest --grade`."""
    command = [sys.executable, "-m", "pytest", "--grade", "--device=vgpu", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.night
def test_workers_of_xdist_are_refused(tmp_path: Path) -> None:
    done = ours("-n", "2", f"--grade-report={tmp_path / 'report'}")
    assert done.returncode == 2
    assert done.stderr.strip() == "could not grade: grading needs no -n: it uses the cores that are there; leave it out"
    assert not (tmp_path / "report").exists()


@pytest.mark.long
def test_stubs_earn_nothing_and_each_criterion_names_its_task(tmp_path: Path) -> None:
    done = ours("--lab=1", f"--grade-report={tmp_path}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "Grade 0/20  not passed" in done.stdout
    result = document(tmp_path)
    assert set(outcomes(result).values()) <= {"failed", "blocked"}
    for criterion in result["labs"][0]["criteria"]:
        assert "Task 1." in criterion["checks"][0]["message"], criterion["id"]
    assert result["integrity"] == []


@pytest.mark.night
def test_one_criterion_is_graded_after_what_it_builds_on_and_scored_alone(tmp_path: Path) -> None:
    done = ours("--criterion=lab1.measurements", f"--grade-report={tmp_path}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Grade 0/5  of the criteria that were asked for" in done.stdout
    result = document(tmp_path)
    assert [criterion["id"] for lab in result["labs"] for criterion in lab["criteria"]] == ["lab1.measurements"]
    assert set(outcomes(result).values()) == {"blocked"}
    check = result["labs"][0]["criteria"][0]["checks"][0]
    assert check["blocked_by"] == "lab1.benchmark.returns_result"
    assert "(lab1.benchmark.returns_result): Task 1." in check["message"]


@pytest.mark.night
def test_the_reference_graded_twice_with_one_seed_gives_one_grade(tmp_path: Path) -> None:
    """Once by each front, with a space and with an equals sign."""
    gpulabs = [str(Path(sys.executable).with_name("gpulabs")), "grade", "solutions", "--device=vgpu", "--lab=1"]
    first = ours("--lab=1", "--submission", "solutions", "--grade-seed=5", f"--grade-report={tmp_path / 'a'}")
    second = subprocess.run(
        [*gpulabs, "--seed=5", f"--report={tmp_path / 'b'}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (first.returncode, second.returncode) == (0, 0), first.stdout + second.stdout + second.stderr
    results = [document(tmp_path / name) for name in "ab"]
    for result in results:
        assert (result["score"], result["seed"], result["simulated"]) == (20, 5, True)
        result.pop("seconds")
        for lab in result["labs"]:
            for criterion in lab["criteria"]:
                for check in criterion["checks"]:
                    check.pop("seconds")
    assert results[0] == results[1]
