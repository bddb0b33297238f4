"""Another course than this one can be graded: a rubric, checks and probes of its own, given by a plugin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.other_graders import COURSE, PRELOAD, Course
from benchmarks.three_questions import assignment
from gradebox.configuration import own_configuration
from gradebox.sandbox import Sandbox


@pytest.mark.parametrize(
    ("answers", "points"), [(assignment.QUESTIONS, 3), (assignment.WRONG, 2)], ids=["right", "wrong"]
)
def test_a_course_of_a_plugin_is_graded_with_its_own_rubric_and_checks(
    answers: dict[str, str], points: int, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    lab = tmp_path / "ada" / "lab1_questions"
    lab.mkdir(parents=True)
    (lab / "questions.py").write_text(assignment.module(answers))
    arguments = [*own_configuration(), "--grade", f"--submission={lab.parent}", "--device=vgpu"]
    with Sandbox(lab.parent, preload=PRELOAD, probe_paths=[COURSE / "probes"]) as sandbox:
        pytester.inline_run(*arguments, f"--grade-report={tmp_path / 'report'}", plugins=[Course(sandbox)])
    grade = json.loads((tmp_path / "report" / "grade.json").read_text())
    assert (grade["score"], grade["max_score"], grade["rubric_version"]) == (points, 3, "three-questions")
