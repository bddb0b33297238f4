"""Classes work with any course: the demo is graded, reviewed, exported and compared by the command `gradebook`."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gradebook.__main__
from gradebook import command_name
from gradebook.cli import demo, host
from gradebox.authoring import lint
from gradebox.course.course import load

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
    rows = csv.DictReader(io.StringIO((folder / "autumn" / "exports" / "grades.csv").read_text()))
    return {row["student"]: float(row["score"]) for row in rows}


CLASS = ("--course", "course", "class", "submissions", "--out", "autumn", "--config", "class.toml", "--seed", "7")


def test_a_class_of_another_course_is_graded_and_all_that_follows(folder: Path) -> None:
    for path in (folder / "submissions").iterdir():
        if path.stem not in ("ada", "bob", "dana"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
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


@pytest.mark.night
def test_the_whole_demo_has_the_points_that_its_students_deserve(folder: Path) -> None:
    run(*CLASS)
    assert grades(folder) == SCORES
    assert "pairs at least" in run("--course", "course", "similarity", "autumn")


def test_the_demo_is_written_only_into_a_new_folder(folder: Path) -> None:
    with pytest.raises(ValueError, match="is not empty; name a new folder"):
        demo.make(folder)


def test_the_demo_course_has_nothing_to_mend() -> None:
    course = load(demo.COURSE)
    for folder in ("solutions", "labs"):
        assert list(lint.problems(course, demo.COURSE / folder)) == []


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
