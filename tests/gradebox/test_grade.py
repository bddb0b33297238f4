"""Points are counted over the rubric's list, so nothing that vanishes can help."""

from decimal import Decimal

import pytest

from gradebox.common.exit_codes import ExitCode
from gradebox.course.rubric import Check, Criterion, Lab, Rubric
from gradebox.run import deductions
from gradebox.run.grade import CheckReport, Circumstances, Grade, Outcome, grade

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


NO_FUNCTIONS: dict[str, set[str]] = {}


def of(points: str, **reports: CheckReport) -> list[tuple[str, str, Decimal]]:
    """Of a criterion with a check of each of these points: outcome, what it follows from, points earned."""
    names = [f"lab1.a.c{i}" for i in range(len(points.split()))]
    lab = Lab("lab1", 1, "One", "lab1_one", Decimal(9), (criterion("lab1.a", "9", *points.split()),))
    result = grade(
        Rubric("1", Decimal(9), Decimal(70), (lab,)), [lab], dict(zip(names, reports.values(), strict=True)), HERE
    )
    return [(str(check.outcome), check.follows_from, check.points) for check in result.checks]


def failed(cause: str = "", belongs_to: str = "", message: str = "wrong", built_on: str = "") -> CheckReport:
    return CheckReport(Outcome.FAILED, message, cause=cause, belongs_to=belongs_to, answered=True, built_on=built_on)


def ended(evidence: str) -> CheckReport:
    """A check in which the submission's code did not come to its end."""
    return CheckReport(Outcome.FAILED, f"your code raised something, {evidence}", evidence=evidence)


def test_one_mistake_is_charged_once_where_it_costs_most() -> None:
    rows = of("1 2 2 4", a=failed("late"), b=failed("late"), c=failed("late"), d=PASSED)
    assert rows == [
        ("failed", "lab1.a.c1", 1), ("failed", "", 0), ("failed", "lab1.a.c1", 2), ("passed", "", 4)
    ]  # fmt: skip


def test_a_mistake_is_charged_where_it_belongs_if_that_failed() -> None:
    rows = of("1 2 6", a=failed("late", "lab1.a.c0"), b=failed("late", "lab1.a.c0"), c=PASSED)
    assert [points for _, _, points in rows] == [0, 2, 6]
    rows = of("1 2 6", a=failed("late", "lab1.a.c2"), b=failed("late", "lab1.a.c2"), c=PASSED)
    assert [points for _, _, points in rows] == [1, 0, 6]


def test_two_mistakes_are_charged_twice_and_failures_that_show_nothing_in_common_always() -> None:
    rows = of(
        "1 1 1 1 5", a=failed("late"), b=failed("early"), c=failed(message="saw 1"), d=failed(message="saw 2"), e=PASSED
    )
    assert [(follows, points) for _, follows, points in rows] == [("", 0)] * 4 + [("", 5)]


def test_an_observation_that_two_checks_report_word_for_word_is_one_mistake() -> None:
    rows = of("1 2 6", a=failed(message="saw 1, expected 2"), b=failed(message="saw 1, expected 2"), c=PASSED)
    assert [points for _, _, points in rows] == [1, 0, 6]


def test_only_what_failed_by_the_same_mistake_follows() -> None:
    rows = of("1 2 6", a=CheckReport(Outcome.NEEDS_REVIEW, "because", cause="late"), b=failed("late"), c=PASSED)
    assert [points for _, _, points in rows] == [0, 0, 6]


def test_a_control_experiment_that_passes_shows_what_a_check_follows_from() -> None:
    rows = of("1 2 6", a=failed(message="saw 1"), b=failed(message="saw 2", built_on="lab1.a.c0"), c=PASSED)
    assert [(follows, points) for _, follows, points in rows] == [("", 0), ("lab1.a.c0", 2), ("", 6)]
    chain = of(
        "1 1 1 6",
        a=failed("late"),
        b=failed(message="saw 1", built_on="lab1.a.c0"),
        c=failed(message="saw 2", built_on="lab1.a.c1"),
        d=PASSED,
    )
    assert [follows for _, follows, _ in chain] == ["", "lab1.a.c0", "lab1.a.c0", ""]
    nothing = of("1 2 6", a=PASSED, b=failed(message="saw 2", built_on="lab1.a.c0"), c=PASSED)
    assert [points for _, _, points in nothing] == [1, 0, 6]


def test_what_follows_is_left_uncharged_only_as_far_as_as_much_was_shown_to_work() -> None:
    rows = of("1 2 1 2 3", a=PASSED, b=failed("late"), c=failed("late"), d=failed("late"), e=failed("late"))
    assert [points for _, _, points in rows] == [1, 0, 1, 0, 0]
    assert [cause for _, cause, _ in rows] == ["", "lab1.a.c4", "lab1.a.c4", "lab1.a.c4", ""]
    none = of("1 2 3", a=failed("late"), b=failed("late"), c=failed("late"))
    assert [points for _, _, points in none] == [0, 0, 0]


LINE = "ValueError file.py:3"
ONE_LINE = {"a.c0": LINE, "a.c1": LINE, "b.c0": LINE}


@pytest.mark.parametrize(
    ("functions", "kept"),
    [
        ({"a.c0": {"f"}, "a.c1": {"f"}, "a.c2": {"f"}, "b.c0": {"f"}, "b.c1": {"g"}}, {"a.c1"}),  # `f` earned one point
        ({"a.c0": {"f"}, "a.c1": {"f"}, "a.c2": {"g"}, "b.c0": {"f"}, "b.c1": {"f"}}, {"a.c1", "b.c0"}),
        ({"a.c0": {"f"}, "a.c1": {"f"}, "a.c2": {"g"}, "b.c0": {"f"}, "b.c1": {"g"}}, set()),  # nothing of `f` works
        (NO_FUNCTIONS, set()),
    ],
)
def test_an_exception_at_one_line_is_charged_once_as_far_as_its_functions_were_shown_to_work(
    functions: dict[str, set[str]], kept: set[str]
) -> None:
    points = {"a.c0": Decimal(1), "a.c1": Decimal(1), "a.c2": Decimal(1), "b.c0": Decimal(1), "b.c1": Decimal(2)}
    failures = {check: deductions.Failure(line, answered=False) for check, line in ONE_LINE.items()}
    actual = deductions.deduplicate(points, {"a.c2", "b.c1"}, failures, functions)
    assert actual == ({"a.c1": "a.c0", "b.c0": "a.c0"}, frozenset(kept))


def test_what_waits_for_a_check_that_ended_without_an_answer_follows_from_it() -> None:
    waiting = CheckReport(Outcome.BLOCKED, "blocked", blocked_by="lab1.a.c0")
    result = graded(a0=ended("ValueError file.py:3"), a1=waiting, b0=PASSED)
    assert [check.follows_from for check in result.checks][:3] == ["", "lab1.a.c0", ""]
    open_task = graded(a0=CheckReport(Outcome.FAILED, "Task 1.1: write it"), a1=waiting, b0=PASSED)
    assert [check.follows_from for check in open_task.checks][:3] == ["", "", ""]


def test_the_text_says_which_check_shows_the_same_mistake_and_whether_it_costs() -> None:
    result = graded(a0=failed("late"), a1=failed("late"), b0=PASSED)
    row = result.labs[0].criteria[0]
    assert [result.follows(check) for check in row.checks] == [
        "", "the same mistake as in 'lab1.a.c0', and charged as well: too little works to show more"
    ]  # fmt: skip
    assert row.first_problem is row.checks[0]


def test_a_mistake_is_charged_once_in_whatever_criterion_of_its_lab() -> None:
    lab = Lab(
        "lab1",
        1,
        "One",
        "lab1_one",
        Decimal(10),
        (criterion("lab1.a", "4", "2", "2"), criterion("lab1.b", "6", "3", "3")),
    )
    reports = {"lab1.a.c0": failed("late"), "lab1.a.c1": PASSED, "lab1.b.c0": failed("late"), "lab1.b.c1": PASSED}
    result = grade(Rubric("1", Decimal(10), Decimal(70), (lab,)), [lab], reports, HERE)
    assert [(check.follows_from, check.points) for check in result.checks] == [
        ("lab1.b.c0", 2), ("", 2), ("", 0), ("", 3)
    ]  # fmt: skip
