"""Classes work with any course: the demo is graded, reviewed, exported and compared by the command `gradebook`."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import gradebook.__main__
from gradebook import command_name
from gradebook.cli import demo, host
from gradebox.authoring import lint
from gradebox.course.course import load
from gradebox.sandbox.probe_loader import WrongReturn

SCORES = {"ada": 10, "bob": 8, "chen": 8, "dana": 9, "emmy": 9, "fritz": 0, "grace": 8, "hugo": 8, "ida": 0, "zoe": 0}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host, "_folder", None)
    monkeypatch.setattr(command_name, "_name", "gpulabs")
    assert demo.make(tmp_path / "demo") == 9
    monkeypatch.chdir(tmp_path / "demo")
    return tmp_path / "demo"


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(gradebook.__main__.app, list(arguments))
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.output


def grades(folder: Path) -> dict[str, float]:
    rows = csv.DictReader(io.StringIO((folder / "autumn" / "exports" / "grades.csv").read_text("utf-8-sig")))
    return {row["student"]: float(row["score"]) for row in rows}


CLASS = ("--course", "course", "class", "submissions", "--out", "autumn", "--config", "class.toml", "--seed", "7")


def test_a_class_of_another_course_is_graded_and_all_that_follows(folder: Path) -> None:
    for path in (folder / "submissions").iterdir():
        if path.stem not in ("ada", "bob", "dana"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    roster = (folder / "roster.csv").read_text("utf-8")
    others = re.compile(r"^(?!student|ada|bob|dana)(.*),[^,\n]*$", re.MULTILINE)  # who has no time of submission now
    (folder / "roster.csv").write_text(others.sub(r"\1,", roster), "utf-8")
    assert "3 of 10 students graded" in run(*CLASS)
    assert {name: score for name, score in grades(folder).items() if score} == {"ada": 10, "bob": 8, "dana": 9}
    assert "1 day by the clock" in (folder / "autumn" / "exports" / "feedback" / "dana.md").read_text()
    run("review", "autumn", "--override", "Bob Ross", "lab1.walks", "9.5", "asked in person")
    assert grades(folder)["bob"] == 9.5
    run("review", "autumn", "--excuse", "ida@uni.example", "all", "ill")
    assert "gradebook manual grade autumn" in run("manual", "init", "autumn")
    assert "wrote" in run("--course", "course", "similarity", "autumn", "--lab", "1")
    assert "course? Name its folder" in run("class", "submissions", "--out", "autumn", code=2)
    assert "no student has" not in run("export", "class", "autumn")


@pytest.mark.parametrize(
    ("plotted", "words"),
    [
        (lambda axes: axes, "plot() returned an object of type Axes, expected a Matplotlib Figure"),
        (lambda axes: [axes], "plot() returned an object of type list, expected"),
        (lambda axes: None, "plot() returned None, expected"),
        (lambda axes: type(axes.figure)(), "a Figure without axes"),
        (lambda axes: axes.plot(["low", "high"]) and axes.figure, "whose heights are <U4 of shape"),
    ],
)
def test_the_demo_names_what_a_student_returns_instead_of_a_figure(plotted: Any, words: str) -> None:
    from matplotlib.figure import Figure

    result = plotted(Figure().subplots())
    with pytest.raises(WrongReturn, match=re.escape(words)):
        _demo_probes().plot(_submission(plot=lambda walks: result), values=[])


@pytest.mark.parametrize(
    ("walked", "words"),
    [
        ([[1], [2, 3]], "walk() returned an object of type list with rows of different lengths"),
        ((step for step in (0, 1)), "walk() returned an object of type generator, expected"),
        ("0 1", "walk() returned an object of type str, expected"),
        ([[0], [1]], "walk() returned int64 of shape (2, 1), expected"),
        ([Decimal(0), Decimal(1)], "walk() returned values of type Decimal, expected"),
    ],
)
def test_the_demo_names_what_a_student_returns_instead_of_positions(walked: Any, words: str) -> None:
    with pytest.raises(WrongReturn, match=re.escape(words)):
        _demo_probes().walks(_submission(walk=lambda steps, generator: walked), steps=2, seeds=[1])


def _demo_probes() -> Any:
    path = Path(__file__).parents[2] / "examples/courses/random_walks/lab1/walks/probes.py"
    spec = importlib.util.spec_from_file_location("demo_probes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _submission(**functions: Any) -> Any:
    return SimpleNamespace(module=lambda name: SimpleNamespace(**functions))


@pytest.mark.night
def test_a_file_with_another_name_is_reported_to_the_instructor(folder: Path) -> None:
    for path in (folder / "submissions").iterdir():
        if path.stem not in ("chen", "dana"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    module = folder / "submissions" / "chen" / "lab1_walks" / "walks.py"
    module.rename(module.with_name("my final walks.py"))
    output = run(*CLASS, code=3)  # the others have a time, and no submission
    assert "1 late: dana" in output
    assert "1 graded with 0 points: chen" in output
    assert "chen: a file may have another name or place: lab1_walks holds my final walks.py; its name must be" in output


def test_checks_that_do_not_load_change_nothing_of_a_class(folder: Path) -> None:
    """Else everybody would lose the score of an earlier run."""
    for path in (folder / "submissions").iterdir():
        if path.stem != "ada":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    run(*CLASS, code=3)  # the others have a time, and no submission

    def scores() -> list[str]:
        text = (folder / "autumn" / "exports" / "grades.csv").read_text("utf-8-sig")
        return [row["score"] for row in csv.DictReader(io.StringIO(text)) if row["status"] == "graded"]

    assert scores() == ["10"]
    checks = next((folder / "course" / "lab1").glob("*/checks.py"))
    right = checks.read_text()
    checks.write_text(f"{right}import no_such_module\n")
    for out in ("autumn", "another"):
        said = " ".join(run(*(out if word == "autumn" else word for word in CLASS), code=2).split())
        assert said.startswith(f"could not grade: {checks}:{len(right.splitlines()) + 1}: the checks in course.lab1.")
        assert said.endswith("Nothing was graded, and the exports are as they were")
        assert "grading ada" not in said
    run("--course", "course", "export", "class", "autumn")
    assert scores() == ["10"]
    checks.write_text(right)
    assert "0 submissions to grade" in run(*CLASS, code=3)


@pytest.mark.night
def test_the_whole_demo_has_the_points_that_its_students_deserve(folder: Path) -> None:
    run(*CLASS)
    assert grades(folder) == SCORES
    assert "pairs at least" in run("--course", "course", "similarity", "autumn")


def test_files_of_canvas_are_compared_in_a_course_of_one_lab(folder: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("ada", "bob")):
        code = folder / "course" / "solutions" / "lab1_walks" / "walks.py"
        (tmp_path / "canvas").mkdir(exist_ok=True)
        shutil.copy(code, tmp_path / "canvas" / f"{name}_{number}_4711_walks.py")
    said = run("--course", "course", "similarity", str(tmp_path / "canvas"), "--out", str(tmp_path / "out"))
    assert "2 submissions, 1 pair at least" in said


def test_the_demo_is_written_only_into_a_new_folder(folder: Path) -> None:
    with pytest.raises(ValueError, match="is not empty; name a new folder"):
        demo.make(folder)


def test_the_demo_course_has_nothing_to_mend() -> None:
    course = load(demo.COURSE)
    for folder in ("solutions", "labs"):
        assert list(lint.problems(course, demo.COURSE / folder)) == []


def autograder(folder: Path, kind: str, *options: str) -> Path:
    """The files of an autograder of the demo's course, unpacked."""
    if kind == "classroom50":
        run("--course", "course", "export", kind, "--out", "autograder", *options)
        packed = folder / "autograder" / "course.zip"
    else:
        run("--course", "course", "export", kind, "--out", "autograder.zip", *options)
        packed = folder / "autograder.zip"
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(folder / "source")
    return folder / "source"


def test_autograders_of_another_course_bring_the_engine_along(folder: Path) -> None:
    """And what is to be installed; without the solutions, and without what lies beside it."""
    source = autograder(folder, "gradescope-autograder")
    packages = {path.name for path in source.iterdir() if path.is_dir()}
    assert packages == {"gradebox", "gradebook", "course"}
    assert not (source / "course" / "solutions").exists()
    assert "COURSE=course\n" in (source / "settings.sh").read_text()
    needed = (source / "requirements.txt").read_text().splitlines()
    assert [line for line in needed if line.startswith(("numpy", "matplotlib"))] == [
        "numpy>=1.26",
        "matplotlib>=3.9,<4",
    ]
    assert not (source / "install.sh").exists()
    (folder / "course" / "requirements.txt").unlink()
    for kind in ("gradescope-autograder", "classroom50"):
        said = run("--course", "course", "export", kind, "--out", "other", code=2)
        assert "the course loads matplotlib, and nothing says what installs it: write" in said
    said = run("--course", "course", "export", "github-actions", code=2)
    assert "'Random walks' is in none: use export classroom50 or export gradescope-autograder" in said


@pytest.mark.night
@pytest.mark.parametrize("kind", ["gradescope-autograder", "classroom50"])
def test_autograders_of_another_course_grade_it(folder: Path, kind: str) -> None:
    solution = demo.COURSE / "solutions" / "lab1_walks"
    source = autograder(folder, kind, "--seed", "3")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if kind == "classroom50":
        shutil.copytree(solution, folder / "checkout" / "lab1_walks")
        environment["GPULABS_PYTHON"] = sys.executable
        command, result = [sys.executable, folder / "autograder" / "autograder.py"], folder / "checkout" / "result.json"
    else:
        shutil.copytree(solution, folder / "submission" / "lab1_walks")
        (folder / "checkout").mkdir()
        environment |= {"AUTOGRADER_ROOT": str(folder), "AUTOGRADER_PYTHON": sys.executable}
        command, result = ["bash", source / "run_autograder"], folder / "results" / "results.json"
    done = subprocess.run(
        command, cwd=folder / "checkout", env=environment, check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(result.read_text())["score"] == 10


NAMED = ("values", "device", "student", "limits", "conditions", "probe", "options", "ranks", "self")


def test_inputs_may_be_called_as_options_are(tmp_path: Path) -> None:
    """And lint says where an input has the name of the probe's first parameter, or none that it takes."""
    course = tmp_path / "inputs_named"
    shutil.copytree(demo.COURSE, course, ignore=shutil.ignore_patterns("__pycache__", "class"))
    lab = course / "lab1" / "walks"
    names = ", ".join(NAMED)
    echo = f"def echo(sandbox, *, {names}):\n    return {{'names': [{names}]}}\n"
    (lab / "probes.py").write_text(f"{echo}\n\ndef one(student, *, n):\n    return {{}}\n")
    sent = ", ".join(f"{name}={number}" for number, name in enumerate(NAMED))
    checks = (lab / "checks.py").read_text().partition("@criterion")[0]
    body = '@criterion("lab1.walks")\nclass Walks:\n'
    body += f'    def test_steps(self, submission):\n        seen = submission.probe("lab1.walks.echo", {sent})\n'
    body += f"        require_equal(seen.names, list(range({len(NAMED)})), what='the inputs')\n"
    for name in ("repeatable", "fair", "mean", "apart"):
        body += f"    def test_{name}(self, submission):\n        pass\n"
    body += '    def test_plot(self, submission):\n        submission.probe("lab1.walks.one", student=1, n=2)\n'
    body += '        submission.probe("lab1.walks.one", limits=1, n=2)\n        submission.probe("lab1.walks.one")\n'
    (lab / "checks.py").write_text(checks + body)
    texts = list(lint.problems(load(course)))
    assert [text.partition("lab1.walks.one ")[2] for text in texts] == [
        "is sent student, as its first parameter is called, which holds the submission: rename one of them",
        'is sent limits, which it does not take; as an option it goes apart, behind the probe\'s name: {"limits": ...}',
        "needs n, which it is not sent",
    ]
