"""What the tests of every lab require of a grading: a bug costs where it should, a correct style costs nothing."""

from __future__ import annotations

from tests.scenarios.build import Scenario
from tests.scenarios.grading import Graded


def assert_caught(bug: Scenario, graded: Graded) -> None:
    """The bug fails the checks that it names and loses points in its criteria.

    Of the other checks that were run, only those fail that the scenario allows.
    """
    assert bug.fails, "the scenario names no check"
    assert set(bug.fails) <= graded.asked, f"never run: {set(bug.fails) - graded.asked}"
    assert set(bug.fails).isdisjoint(graded.passed), graded.problems
    assert bug.loses <= graded.losing_criteria, graded.problems
    assert graded.losing_criteria <= bug.loses | bug.may_lose, graded.problems
    assert graded.needs_review == set(), graded.problems
    assert graded.charged & set(bug.fails), f"none of its checks is charged\n{graded.problems}"
    if bug.is_charged_once:
        # If only some checks were run, too few have passed to pay for what follows.
        follow = {name for name, check in graded.checks.items() if check.follows_from in bug.fails}
        assert graded.charged - (follow if graded.left_out else set()) <= set(bug.fails), graded.problems


def assert_caught_alone(bug: Scenario, graded: Graded) -> None:
    """Every check was run, and outside the criteria that the scenario names all passed."""
    assert graded.left_out == set(), f"never run: {graded.left_out}"
    assert_caught(bug, graded)


def assert_complete(graded: Graded, points: float) -> None:
    """Every point, and nothing for an instructor to look at."""
    assert graded.problems == "", graded.problems
    assert graded.score == points
    assert graded.grade.integrity == ()
