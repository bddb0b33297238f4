"""Two planted bugs in one submission: neither hides behind the other (`pairs.py`)."""

from __future__ import annotations

import pytest

import grader
from gradebox.run.grade import CheckReport, Circumstances, Outcome, grade
from tests.scenarios import pairs
from tests.scenarios.build import scenarios
from tests.scenarios.grading import Bench, Graded


@pytest.mark.night
@pytest.mark.parametrize("lab", pairs.LABS)
def test_no_two_independent_bugs_are_joined(lab: int, bench: Bench) -> None:
    for pair in pairs.grade(bench, lab, pairs.draw(lab, 6, bench.seed)):
        assert isinstance(pair, pairs.Pair), pair
        assert pair.joined == (), f"{pair.first} and {pair.second}"


def test_pairs_are_of_edits_that_do_not_touch_each_other() -> None:
    for first, second in pairs.draw(2, 50, 1):
        assert first.name != second.name
        merged = pairs.both(first, second)
        assert len(merged.table["edit"]) == len(first.table["edit"]) + len(second.table["edit"])
    bug = pairs.draw(2, 1, 1)[0][0]
    assert not pairs.can_be_together(bug, bug)


def graded(follows: str = "", **outcomes: Outcome) -> Graded:
    """A grade of Lab 1 in which these checks of its first criterion did not pass."""
    course = grader.course()
    reports = {check.id: CheckReport(Outcome.PASSED) for check in course.rubric.checks()}
    for name, outcome in outcomes.items():
        built_on = follows if name == "warmed_up" else ""
        blocked_by = "lab1.benchmark.returns_result" if outcome is Outcome.BLOCKED else ""
        reports[f"lab1.benchmark.{name}"] = CheckReport(
            outcome, f"saw {name}", answered=True, built_on=built_on, blocked_by=blocked_by
        )
    here = Circumstances("labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    result = grade(course.rubric, course.rubric.select((1,)), reports, here)
    return Graded(result, frozenset(check.id for check in result.checks))


def test_a_check_that_is_said_to_follow_from_the_other_bug_is_joined() -> None:
    first, second = scenarios("lab1/bugs")[:2]
    alone = graded(returns_result=Outcome.FAILED), graded(warmed_up=Outcome.FAILED)
    apart = graded(returns_result=Outcome.FAILED, warmed_up=Outcome.FAILED)
    pair = pairs.compared(1, first, second, (*alone, apart))
    assert (pair.joined, pair.unseen, pair.together) == ((), (), sum(pair.alone))
    joined = graded("lab1.benchmark.returns_result", returns_result=Outcome.FAILED, warmed_up=Outcome.FAILED)
    pair = pairs.compared(1, first, second, (*alone, joined))
    assert pair.joined == ("lab1.benchmark.warmed_up with lab1.benchmark.returns_result",)
    hidden = graded(returns_result=Outcome.FAILED, warmed_up=Outcome.BLOCKED)
    assert pairs.compared(1, first, second, (*alone, hidden)).unseen == ("lab1.benchmark.warmed_up",)
