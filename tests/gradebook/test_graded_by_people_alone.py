"""A course without any check: it is taken in, graded by hand, and exported."""

from __future__ import annotations

import csv
import json
import shutil
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gradebook.__main__
import gradebox.__main__
from gradebook.cli import demo, host
from gradebook.grading.manual_grading import marks
from gradebook.grading.manual_grading.marks import Mark
from gradebook.store import Gradebook

COURSE = 'title = "Essays"\nversion = "1"\nlabs = ["lab1", "lab2"]\npass_percent = 50\n'
LAB = 'title = "Essay {number}"\npackage = "lab{number}_essay"\n'
RUBRIC = """title = "Essay"
released = {released}

[[criterion]]
id = "argument"
title = "Argument"
points = 20
lab = 1
"""


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(gradebook.__main__.app, list(arguments))
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return " ".join(done.output.split())


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host, "_folder", None)
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        (tmp_path / "essays" / f"lab{number}").mkdir(parents=True)
        (tmp_path / "essays" / f"lab{number}" / "lab.toml").write_text(LAB.format(number=number))
        (tmp_path / "essays" / f"lab{number}" / "__init__.py").touch()
    (tmp_path / "essays" / "course.toml").write_text(COURSE)
    (tmp_path / "essays" / "__init__.py").touch()
    for name, file in (("ada", "report.md"), ("bob", "essay.pdf")):
        essay = tmp_path / "submissions" / name / "lab1_essay" / file
        essay.parent.mkdir(parents=True)
        essay.write_text(f"of {name}")
    (tmp_path / "roster.csv").write_text(
        "Student,ID,SIS User ID,SIS Login ID,Section\nAda Lovelace,1,s1,ada,A\nBob Ross,2,s2,bob,A\nIda,3,s3,ida,A\n"
    )
    return tmp_path


def test_a_course_without_checks_is_graded_by_hand_and_exported(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    grade = ("--course", "essays", "class", "submissions", "--out", "out", "--roster", "roster.csv", "--device", "cpu")
    said = run(*grade)
    assert "2 of 3 students graded" in said
    assert "so people grade this class; write a rubric" in said
    assert "nothing reads" not in said
    exports = folder / "out" / "exports"
    assert {(row["score"], row["passed"]) for row in rows(exports / "grades.csv")} == {("", "")}, "nobody has 0 of 0"
    assert len(rows(exports / "canvas.csv")) == 1

    assert "not graded by hand to the end" in (exports / "class.html").read_text()

    manual = folder / "out" / "manual_grading"
    run("manual", "init", "out")
    (manual / "rubric.toml").write_text(RUBRIC.format(released="true"))
    assert "not graded by hand to the end" in run("export", "class", "out")
    with Gradebook(folder / "out", locked=False) as gradebook:
        students = gradebook.students()
    for student, points in zip(students, ("17", "12"), strict=False):
        made = Mark(
            criterion="argument", content=str(student.content), by="Ana", at=datetime.now(UTC), done=True,
            adjust=Decimal(points) - 20, revision=0,
        )  # fmt: skip
        marks.change(folder / "out", f"student {student.student}", made)
    run("export", "class", "out")
    graded = rows(exports / "grades.csv")
    assert [(row["score"], row["max_score"], row["passed"]) for row in graded] == [
        ("17", "20", ""), ("12", "20", ""), ("0", "20", ""),
    ]  # fmt: skip
    assert [list(row.values())[-1] for row in rows(exports / "canvas.csv")] == ["20", "17", "12", "0"]
    feedback = (exports / "feedback" / "ada.md").read_text()
    assert "17 of 20 points" in feedback
    assert "passed" not in feedback + (exports / "feedback" / "ada.html").read_text()
    made = json.loads((exports / "gradescope" / "bob.json").read_text())
    assert made["score"] == 12
    assert made["output"].startswith("12 of 20 points")
    assert "0 submissions to grade" in run(*grade)
    CliRunner().invoke(gradebox.__main__.app, ["grade", "--course", "essays", "submissions/ada"])
    assert "lab 1, 2 has no checks" in capfd.readouterr().err


def test_a_lab_that_people_grade_next_to_one_that_checks_grade(folder: Path) -> None:
    shutil.copytree(demo.COURSE, folder / "mixed", ignore=shutil.ignore_patterns("class", "__pycache__"))
    (folder / "mixed" / "lab2").mkdir()
    (folder / "mixed" / "lab2" / "lab.toml").write_text(LAB.format(number=2))
    (folder / "mixed" / "lab2" / "__init__.py").touch()
    course = folder / "mixed" / "course.toml"
    course.write_text(course.read_text().replace('labs = ["lab1"]', 'labs = ["lab1", "lab2"]'))
    essay = folder / "submissions" / "ada" / "lab2_essay" / "essay.pdf"
    essay.parent.mkdir()
    essay.write_text("an essay")
    shutil.rmtree(folder / "submissions" / "ada" / "lab1_essay")
    shutil.copytree(demo.COURSE / "solutions" / "lab1_walks", folder / "submissions" / "ada" / "lab1_walks")
    run(
        "--course", "mixed", "class", "submissions", "--out", "out", "--roster", "roster.csv", "--device", "cpu", code=3
    )
    ada = rows(folder / "out" / "exports" / "grades.csv")[0]
    assert (ada["score"], ada["max_score"], ada["passed"], ada["reason"]) == ("10", "10", "yes", "")
