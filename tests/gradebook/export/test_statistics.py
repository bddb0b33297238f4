"""Statistics per check: what they are in numbers, and which checks they accuse."""

import random
from itertools import permutations

import numpy as np
import pytest

from gradebook.export import statistics, view
from gradebook.export.statistics import CheckStatistics, item_rest_correlation, upper_lower_index
from gradebook.results import ClassResult
from gradebox.run.grade import PASSED_IN_DOUBT, CheckReport, Outcome
from tests.gradebook.export.classes import a_class, graded, student

CHECK = "lab1.benchmark.warmed_up"
OTHERS = (
    "lab1.memory.every_stage_present",
    "lab1.memory.allocated_equals_reference",
    "lab1.memory.peak_equals_reference",
)
FAILED = CheckReport(Outcome.FAILED, "12.5 ms seen, 3 ms expected")


def of(result: ClassResult) -> dict[str, CheckStatistics]:
    return {row.check: row for row in statistics.of(view.of(result))}


def test_the_correlation_is_pearsons() -> None:
    draw = random.Random(1)
    passed = [float(draw.random() < 0.6) for _ in range(50)]
    rest = [value + draw.gauss(0, 1) for value in passed]
    assert item_rest_correlation(passed, rest) == pytest.approx(np.corrcoef(passed, rest)[0, 1], abs=1e-12)


def test_the_check_itself_does_not_count_for_its_rest() -> None:
    # One check alone varies: with itself in the total it would correlate perfectly.
    rows = [student(f"s{n:02}", graded({CHECK: FAILED} if n % 2 else {})) for n in range(20)]
    assert of(a_class(rows))[CHECK].item_rest is None


def test_the_index_compares_the_best_27_percent_with_the_weakest() -> None:
    rest = [float(value) for value in range(100)]
    passed = [float(value >= 60) for value in range(100)]
    assert upper_lower_index(passed, rest) == 1
    passed[0] = passed[1] = 1.0
    assert upper_lower_index(passed, rest) == pytest.approx(1 - 2 / 27)


def test_the_index_does_not_depend_on_the_order_of_ties() -> None:
    rest = [0.0] * 4 + [1.0] * 3 + [2.0] * 3
    passed = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    indices = set()
    for order in permutations(range(4)):
        rows = [*order, *range(4, 10)]
        indices.add(round(upper_lower_index([passed[n] for n in rows], [rest[n] for n in rows]) or 0, 12))
    assert indices == {round(2 / 3 - 1 / 4, 12)}


def test_nothing_is_stated_for_a_handful_of_submissions() -> None:
    rows = [student(f"s{n}", graded({CHECK: FAILED} if n % 2 else {})) for n in range(9)]
    row = of(a_class(rows))[CHECK]
    assert (row.item_rest, row.upper_lower, row.flag) == (None, None, "")
    assert row.share_passed == pytest.approx(5 / 9)


def test_a_check_that_weak_submissions_pass_is_accused() -> None:
    rows = []
    for n in range(20):
        strong = n < 10
        reports = {CHECK: FAILED} if strong else dict.fromkeys(OTHERS[: 1 + n % 3], FAILED)
        rows.append(student(f"s{n:02}", graded(reports)))
    row = of(a_class(rows))[CHECK]
    assert row.flag == "negative discrimination"
    assert (row.item_rest or 0) < -0.5
    assert "strong submission that fails" in row.advice


def test_a_check_that_strong_submissions_pass_is_not_accused() -> None:
    rows = [student(f"s{n:02}", graded(dict.fromkeys((CHECK, *OTHERS), FAILED) if n < 8 else {})) for n in range(20)]
    row = of(a_class(rows))[CHECK]
    assert (row.flag, row.item_rest, row.upper_lower) == ("", pytest.approx(1.0), pytest.approx(1.0))


def test_checks_that_nobody_or_everybody_passes_are_named() -> None:
    rows = [student(f"s{n:02}", graded({CHECK: FAILED})) for n in range(12)]
    checks = of(a_class(rows))
    assert checks[CHECK].flag == "nobody passes"
    assert checks[OTHERS[0]].flag == "everybody passes"


def test_a_check_that_often_cannot_decide_is_named() -> None:
    unsure = CheckReport(Outcome.NEEDS_REVIEW, "the machine was busy")
    rows = [student(f"s{n:02}", graded({CHECK: unsure} if n < 3 else {})) for n in range(20)]
    assert of(a_class(rows))[CHECK].flag == "often undecided"


def test_a_check_is_not_to_blame_for_submissions_that_tampered_elsewhere() -> None:
    in_doubt = CheckReport(Outcome.NEEDS_REVIEW, PASSED_IN_DOUBT)
    rows = [student(f"s{n:02}", graded({CHECK: in_doubt} if n < 10 else {})) for n in range(20)]
    row = of(a_class(rows))[CHECK]
    assert row.needs_review == 10
    assert row.flag != "often undecided"


def test_outcomes_are_counted_apart() -> None:
    kinds = [Outcome.PASSED, Outcome.FAILED, Outcome.BLOCKED, Outcome.NEEDS_REVIEW, Outcome.FAILED]
    rows = [student(f"s{n}", graded({CHECK: CheckReport(kind, "why")})) for n, kind in enumerate(kinds)]
    row = of(a_class([*rows, student("gone", None, status="missing")]))[CHECK]
    assert (row.passed, row.failed, row.blocked, row.needs_review, row.submissions) == (1, 2, 1, 1, 5)


def test_messages_that_differ_in_numbers_only_are_one_example() -> None:
    messages = ["12.5 ms seen, 3 ms expected", "0.1 ms seen, 3 ms expected", "no result"]
    rows = [student(f"s{n}", graded({CHECK: CheckReport(Outcome.FAILED, text)})) for n, text in enumerate(messages)]
    examples = of(a_class(rows))[CHECK].examples
    assert [(example.count, example.message, example.student) for example in examples] == [
        (2, messages[0], "s0"),
        (1, messages[2], "s2"),
    ]


def test_an_empty_class_has_no_statistics() -> None:
    assert statistics.of(view.of(a_class([student("gone", None, status="missing")]))) == ()
