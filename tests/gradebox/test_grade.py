"""Points are counted over the rubric's list, so nothing that vanishes can help."""

from decimal import Decimal

import pytest

from gradebox.grade import CheckReport, Circumstances, ExitCode, Grade, Outcome, grade
from gradebox.rubric import Check, Criterion, Lab, Rubric

HERE = Circumstances("labs", "0" * 64, "virtual T4 (simulated)", True, "namespaces", 7, 1.5)


def criterion(name: str, points: str, *checks: str) -> Criterion:
    return Criterion(
        name, name.title(), Decimal(points), tuple(Check(f"{name}.c{i}", Decimal(p)) for i, p in enumerate(checks))
    )


LAB = Lab(
    "lab1", 1, "One", "lab1_one", Decimal(10), (criterion("lab1.a", "4", "2.5", "1.5"), criterion("lab1.b", "6", "6"))
)
UNWRITTEN = Lab("lab2", 2, "Two", "lab2_two", Decimal(90), (criterion("lab2.a", "90"),))
RUBRIC = Rubric("1", Decimal(100), Decimal(70), (LAB, UNWRITTEN))
PASSED, FAILED = CheckReport(Outcome.PASSED), CheckReport(Outcome.FAILED, "wrong")


def graded(**reports: CheckReport) -> Grade:
    names = {"a0": "lab1.a.c0", "a1": "lab1.a.c1", "b0": "lab1.b.c0"}
    return grade(RUBRIC, RUBRIC.labs, {names[key]: report for key, report in reports.items()}, HERE)


def test_points_are_exact_decimals() -> None:
    result = graded(a0=PASSED, a1=FAILED, b0=PASSED)
    assert result.score == Decimal("8.5")
    assert [row.points for row in result.labs[0].criteria] == [Decimal("2.5"), 6]


def test_a_lab_that_is_not_written_gives_no_points_and_takes_none() -> None:
    result = graded(a0=PASSED, a1=PASSED, b0=PASSED)
    assert (result.score, result.max_score, result.pass_score) == (10, 10, 7)
    assert not result.labs[1].available
    assert result.passed


def test_passing_takes_seventy_percent_of_the_selected_points() -> None:
    assert not graded(a0=FAILED, a1=FAILED, b0=PASSED).passed
    assert graded(a0=FAILED, a1=PASSED, b0=PASSED).score == Decimal("7.5")
    assert graded(a0=FAILED, a1=PASSED, b0=PASSED).passed


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.BLOCKED, Outcome.NEEDS_REVIEW])
def test_only_a_passed_check_earns_points(outcome: Outcome) -> None:
    assert graded(a0=PASSED, a1=PASSED, b0=CheckReport(outcome, "because")).score == 4


def test_a_check_that_never_reported_earns_nothing_and_needs_review() -> None:
    result = graded(a0=PASSED, b0=PASSED)
    assert result.score == Decimal("8.5")
    assert [check.id for check in result.needs_review] == ["lab1.a.c1"]
    assert "did not report" in result.needs_review[0].message


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (PASSED, ExitCode.PASSED),
        (FAILED, ExitCode.NOT_PASSED),
        (CheckReport(Outcome.NEEDS_REVIEW, "cannot tell"), ExitCode.NEEDS_REVIEW),
    ],
)
def test_the_exit_code_tells_the_result(last: CheckReport, code: ExitCode) -> None:
    assert graded(a0=PASSED, a1=PASSED, b0=last).exit_code is code


def test_a_failed_check_is_shown_before_one_it_blocked() -> None:
    result = graded(a0=CheckReport(Outcome.BLOCKED, "by b"), a1=FAILED, b0=PASSED)
    problem = result.labs[0].criteria[0].first_problem
    assert problem is not None
    assert problem.id == "lab1.a.c1"
