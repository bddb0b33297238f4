"""Every planted bug of the exercise "kernels of your own" loses points where it should; right styles keep them all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import grader
from tests.scenarios.build import SCENARIOS, Scenario, load, scenarios
from tests.scenarios.expectations import (
    assert_caught,
    assert_caught_alone,
    assert_complete,
)
from tests.scenarios.grading import Graded

pytest.importorskip("triton", reason="needs Triton")
Grade = Callable[..., Graded]
LAB, POINTS = "kernels", 20


@pytest.mark.parametrize("bug", scenarios("kernels/bugs"), ids=lambda scenario: scenario.name)
def test_a_planted_bug_fails_its_checks(bug: Scenario, grade: Grade) -> None:
    assert_caught(bug, grade(bug, LAB, own_checks_only=True))


@pytest.mark.night
@pytest.mark.parametrize("bug", scenarios("kernels/bugs"), ids=lambda scenario: scenario.name)
def test_a_planted_bug_loses_points_in_its_criteria_and_in_no_other(bug: Scenario, grade: Grade) -> None:
    assert_caught_alone(bug, grade(bug, LAB, cold=True))


@pytest.mark.parametrize("variant", scenarios("kernels/variants"), ids=lambda scenario: scenario.name)
def test_a_correct_solution_keeps_every_point_in_any_style(variant: Scenario, grade: Grade) -> None:
    assert_complete(grade(variant, LAB), POINTS)


def test_the_reference_keeps_the_points_of_what_is_cheap_to_grade(grade: Grade) -> None:
    graded = grade(load(SCENARIOS / "exploits" / "honest_right"), criteria=("kernels.add", "kernels.softmax"))
    assert graded.passed == set(graded.checks) != set(), graded.problems


@pytest.mark.night
def test_the_reference_keeps_every_point(grade: Grade) -> None:
    assert_complete(grade(load(SCENARIOS / "exploits" / "honest_right"), LAB), POINTS)


@pytest.mark.night
@pytest.mark.parametrize("model", ["H100"])
def test_the_reference_keeps_every_point_on_another_card(model: str, grade: Grade) -> None:
    assert_complete(grade(load(SCENARIOS / "exploits" / "honest_right"), LAB, device=f"vgpu:{model}"), POINTS)


def test_the_exercise_lies_outside_the_100_points() -> None:
    course = grader.course()
    assert course.rubric.points == 100
    assert LAB not in {lab.id for lab in course.labs}
    assert course.rubric_of(LAB).points == POINTS
