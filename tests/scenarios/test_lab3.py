"""Every planted bug of Lab 3 loses points where it should and nowhere else; every correct style keeps them all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.by_day import one_in
from tests.scenarios.build import SCENARIOS, Scenario, load, scenarios
from tests.scenarios.expectations import (
    assert_caught,
    assert_caught_alone,
    assert_complete,
)
from tests.scenarios.grading import Graded

Grade = Callable[..., Graded]
LAB, POINTS = "3", 25


@pytest.mark.parametrize("bug", scenarios("lab3/bugs"), ids=lambda scenario: scenario.name)
def test_a_planted_bug_fails_its_checks(bug: Scenario, grade: Grade) -> None:
    assert_caught(bug, grade(bug, LAB, own_checks_only=True))


@pytest.mark.night
@pytest.mark.parametrize("bug", scenarios("lab3/bugs"), ids=lambda scenario: scenario.name)
def test_a_planted_bug_loses_points_in_its_criteria_and_in_no_other(bug: Scenario, grade: Grade) -> None:
    assert_caught_alone(bug, grade(bug, LAB, cold=True))


@pytest.mark.parametrize("variant", scenarios("lab3/variants"), ids=lambda scenario: scenario.name)
def test_a_correct_solution_keeps_every_point_in_any_style(variant: Scenario, grade: Grade) -> None:
    assert_complete(grade(variant, LAB), POINTS)


# On the T4 it says by day that right work passes each check; most of its replies serve the bugs as well. `make matrix`
# grades it there with twenty seeds.
@pytest.mark.long
@pytest.mark.parametrize("model", one_in(2, ["T4", "H200"]))
def test_the_reference_keeps_every_point(model: str, grade: Grade) -> None:
    assert_complete(grade(load(SCENARIOS / "exploits" / "honest_right"), LAB, device=f"vgpu:{model}"), POINTS)
