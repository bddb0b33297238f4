"""Every check has hints, in steps that say more and more, and none of them is a solution."""

from __future__ import annotations

import ast
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
    files = {hints.place_of(course, check).rpartition(":")[0] for check in hints.load(course)}
    texts = [(f"{top}/{number}.toml", Path(file).read_bytes())
             for number, file in enumerate(sorted(files)) for top in ("docs", "grader")]  # fmt: skip
    assert len(files) >= len(course.all_labs)
    assert [str(leak) for leak in secrets.leaks(texts)] == []


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


def _names(text: str) -> set[str]:
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names
