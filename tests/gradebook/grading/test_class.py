"""`gpulabs class` as an instructor runs it; one class is really graded, by Lab 1."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from gradebook.grading import class_summary
from gradebox.report.document import SCHEMA_FILE, from_document, to_document
from gradebox.run.grade import Grade
from grader.cli import app
from tests.scenarios.build import ROOT, SCENARIOS, load

BEFORE, BUG = "sys_exit_at_import", "no_warm_up"


def gpulabs(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from grader.cli import app; app()", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A planted bug, and the same by another student, graded by a process that has just graded an exploit."""
    folder = tmp_path_factory.mktemp("class")
    load(SCENARIOS / "exploits" / BEFORE).build(folder / "submissions" / "ada")
    for student in ("bob", "eve"):
        load(SCENARIOS / "lab1" / "bugs" / BUG).build(folder / "submissions" / student)
    options = ("--lab=1", "--device=vgpu", "--jobs=1", "--seed=7")
    return folder, gpulabs("class", folder / "submissions", "--out", folder / "out", *options)


def grade_of(folder: Path, student: str) -> Grade:
    (row,) = [row for row in class_summary.read(folder / "out").students if row.student == student]
    assert row.grade is not None, row.reason
    return row.grade


def comparable(grade: Grade) -> object:
    return class_summary.comparable(to_document(grade))


@pytest.mark.night
def test_a_grade_in_a_class_equals_that_of_the_submission_alone(
    graded: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder, done = graded
    assert done.returncode == 0, done.stdout + done.stderr
    bob = folder / "submissions" / "bob"
    alone = gpulabs("grade", bob, "--lab=1", "--device=vgpu", "--seed=7", "--report", tmp_path)
    expected = from_document(json.loads((tmp_path / "grade.json").read_text()))
    in_class = grade_of(folder, "bob")
    jsonschema.validate(to_document(in_class), json.loads(SCHEMA_FILE.read_text()))
    assert alone.returncode == in_class.exit_code
    assert comparable(in_class) == comparable(replace(expected, submission="bob", course=""))
    assert grade_of(folder, "eve") == replace(in_class, submission="eve")


@pytest.mark.night
def test_a_criterion_graded_again_by_itself_comes_out_the_same(
    graded: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = graded
    before = grade_of(folder, "bob")
    # It builds on a check of another criterion.
    done = gpulabs("class", "--out", folder / "out", "--regrade", "lab1.measurements,bob")
    assert "1 submission to grade, 1 already are" in done.stderr, done.stderr
    assert comparable(grade_of(folder, "bob")) == comparable(before)


@pytest.fixture
def _own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_own_signals")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such/folder"], "there are no submissions at no/such/folder"),
        ([str(ROOT / "labs")], "is one submission"),
        ([], "there is no gradebook"),
        (["tests", "--device=tpu"], "device tpu: expected auto"),
        (["tests", "--lab=one"], "--lab one: expected numbers"),
        (["tests", "--engine=cloud"], "--on cloud: expected local or kubernetes or ray or slurm"),
        (["tests", "--deadline=soon"], "--deadline 'soon' is no moment"),
        (["tests", "--deadline=2026-10-24"], "is a day without a time; write it like 2026-10-24T23:59+01:00"),
        (["tests", "--config=no.toml"], "no.toml cannot be read"),
        (["tests", "--roster=no.csv"], "no.csv cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_one_line_and_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["class", *arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
