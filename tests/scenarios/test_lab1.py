"""Every planted bug of Lab 1 loses points where it should and nowhere else; every correct style keeps them all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradebox.common.exit_codes import ExitCode
from gradebox.run.grade import Outcome
from tests.scenarios.build import SCENARIOS, Scenario, load, scenarios
from tests.scenarios.expectations import (
    assert_caught,
    assert_caught_alone,
    assert_complete,
)
from tests.scenarios.grading import Graded

Grade = Callable[..., Graded]
LAB, POINTS = "1", 20


@pytest.mark.parametrize("bug", scenarios("lab1/bugs"), ids=lambda scenario: scenario.name)
def test_a_planted_bug_fails_its_checks(bug: Scenario, grade: Grade) -> None:
    assert_caught(bug, grade(bug, LAB, own_checks_only=True))


@pytest.mark.night
@pytest.mark.parametrize("bug", scenarios("lab1/bugs"), ids=lambda scenario: scenario.name)
def test_a_planted_bug_loses_points_in_its_criteria_and_in_no_other(bug: Scenario, grade: Grade) -> None:
    assert_caught_alone(bug, grade(bug, LAB, cold=True))


@pytest.mark.long
@pytest.mark.parametrize("variant", scenarios("lab1/variants"), ids=lambda scenario: scenario.name)
def test_a_correct_solution_keeps_every_point_in_any_style(variant: Scenario, grade: Grade) -> None:
    assert_complete(grade(variant, LAB), POINTS)


def test_what_the_virtual_gpu_cannot_do_needs_review_and_fails_nobody_silently(grade: Grade) -> None:
    graded = grade(load(SCENARIOS / "lab1" / "undecided" / "uses_a_memory_pool"), LAB)
    assert graded.grade.exit_code is ExitCode.NEEDS_REVIEW
    first = graded.checks["lab1.benchmark.returns_result"]
    assert (first.outcome, float(first.points)) == (Outcome.NEEDS_REVIEW, 0)
    assert "cannot run this" in first.message
    assert {check.outcome for check in graded.checks.values()} == {
        Outcome.PASSED,
        Outcome.NEEDS_REVIEW,
        Outcome.BLOCKED,
    }


# On the T4, where bugs and styles are graded, `make matrix` grades it with twenty seeds, and test_inputs.py by day.
@pytest.mark.night
@pytest.mark.parametrize("model", ["A100-80GB"])
def test_the_reference_keeps_every_point(model: str, grade: Grade) -> None:
    assert_complete(grade(load(SCENARIOS / "exploits" / "honest_right"), LAB, device=f"vgpu:{model}"), POINTS)
