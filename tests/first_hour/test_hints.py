"""Every check has hints, in steps that say more and more, and none of them is a solution."""

from __future__ import annotations

import ast
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

import grader
from gradebox.course import hints
from gradebox.report.next_step.tasks import tasks
from grader.release.leaks import Secrets
from tests.first_hour.conftest import ROOT

LABS = {lab.id: lab for lab in grader.course().all_labs}
RUBRICS = (grader.course().rubric, *grader.course().exercises)


def test_every_check_of_the_hundred_points_and_of_the_exercises_has_three_steps() -> None:
    course, known = grader.course().rubric, hints.load(grader.course())
    assert hints.problems(RUBRICS, known) == []
    assert sum((check.points for check in course.checks()), Decimal(0)) == 100
    assert {len(hint.steps) for hint in known.values()} == {3}


def test_a_check_without_a_hint_and_a_hint_without_a_check_are_named() -> None:
    known = dict(hints.load(grader.course()))
    known["lab1.benchmark.gone"] = known.pop("lab1.benchmark.warmed_up")
    assert hints.problems(RUBRICS, known) == [
        "lab1.benchmark.warmed_up has no hint",
        "lab1.benchmark.gone is no check of the rubric",
    ]


def test_no_hint_holds_a_line_of_a_solution() -> None:
    secrets = Secrets(ROOT / "solutions")
    # Also as strictly as what students read and fill in is judged.
    course = grader.course()
    files = [(f"{top}/{lab.id}.toml", course.file(lab, hints.FILE).read_bytes())
             for lab in course.all_labs for top in ("docs", "grader")]  # fmt: skip
    assert len(files) == 16
    assert [str(leak) for leak in secrets.leaks(files)] == []


def test_a_solution_in_a_hint_is_found(tmp_path: Path) -> None:
    solution = (ROOT / "solutions/lab1_gpu_basics/benchmark.py").read_text()
    line = next(line for line in solution.splitlines() if "statistics.median(" in line)
    leaks = Secrets(ROOT / "solutions").leaks([("docs/lab1.toml", f'steps = ["""\n{line}\n"""]'.encode())])
    assert list(leaks)


@pytest.mark.parametrize("lab", LABS)
def test_what_a_hint_names_is_there(lab: str) -> None:
    folder = ROOT / "labs" / LABS[lab].package
    numbers = {task.number for task in tasks(folder / "README.md")}
    for hint in (hint for check, hint in hints.load(grader.course()).items() if check.startswith(f"{lab}.")):
        assert hint.task in numbers if numbers else not hint.task, hint.check
        for place in hint.write:
            file, _, name = place.partition(" ")
            text = (folder / file).read_text()
            assert not name or name in _names(text), f"{hint.check}: {place} is not in {folder}"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('task = "2.1"\nwrite = ["a.py f"]\nsteps = ["x"]', r":2: '2\.1' is no task of its lab"),
        ('task = "one"\nwrite = ["a.py f"]\nsteps = ["x"]', r":2: 'one' is no task of its lab"),
        ('task = "1.1"\nwrite = ["f in a"]\nsteps = ["x"]', ":3: write names files and functions"),
        ('task = "1.1"\nwrite = ["a.py f"]\nsteps = []', ":4: one to 3 steps"),
        ('task = "1.1"\nwrite = ["a.py f"]', r":1: \[benchmark\.warmed_up\] lacks the key 'steps'"),
    ],
)
def test_a_hint_that_lacks_something_is_refused(entry: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "lab1").mkdir()
    (tmp_path / "lab1" / "hints.toml").write_text(f"[benchmark.warmed_up]\n{entry}\n")
    with pytest.raises(hints.HintError, match=f"/lab1/hints.toml{said}"):
        hints.load(replace(grader.course(), folder=tmp_path))


@pytest.mark.parametrize(("number", "taken"), [("6.1", True), ("9.9", True), ("", True), ("6", False), ("0.1", False)])
def test_tasks_of_an_exercise_have_a_number_of_their_own_or_none(number: str, taken: bool, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    entry = f'[add.stays_inside]\ntask = "{number}"\nwrite = ["vector_add.py vector_add"]\nsteps = ["x"]\n'
    (tmp_path / "kernels" / "hints.toml").write_text(entry)
    course = replace(grader.course(), folder=tmp_path)
    if taken:
        assert hints.load(course)["kernels.add.stays_inside"].task == number
        return
    with pytest.raises(hints.HintError, match=r"/kernels/hints.toml:2: .* is no task of its lab"):
        hints.load(course)


def _names(text: str) -> set[str]:
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names
