"""A class's grade of one student says what one grading of everything says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

import grader
from gradebook.grading import class_summary
from gradebook.store import Plan, Recorded
from gradebox.report import html
from gradebox.run.grade import CheckReport, Circumstances, Grade, Outcome, grade
from gradebox.run.pictures import Mark, Panel, Picture

PICTURE = Picture("bars", "Seconds of each call", "s", (Panel("seen", (Mark("call", 0.0, 2.0),)),))


@pytest.fixture
def checks() -> list[str]:
    return [check.id for check in _criterion().checks]


def _criterion():  # type: ignore[no-untyped-def]
    return next(criterion for criterion in grader.course().rubric.labs[0].criteria if len(criterion.checks) >= 4)


def both(reports: Mapping[str, CheckReport]) -> tuple[Grade, Grade]:
    """One criterion graded at once, and put together from what a class has kept of it."""
    points, criterion = grader.course().rubric, _criterion()
    alone = replace(points.labs[0], criteria=(criterion,))
    circumstances = Circumstances(
        submission="ada", submission_sha256="0" * 64, device="virtual T4 (simulated)", simulated=True,
        isolation="namespaces", seed=7, seconds=1.0,
    )  # fmt: skip
    once = grade(points, [alone], reports, circumstances)
    plan = Plan(
        title="", labs=(1,), device="vgpu:T4", seed=7, rubric_version=points.version, rubric_digest="",
        grader_version="", digests={}, settings={},
    )  # fmt: skip
    recorded = Recorded(1, "graded", "", False, 1.0, "namespaces", once)
    return once, class_summary.assemble({criterion.id: recorded}, plan, points, [alone], "ada", "0" * 64)


def test_what_follows_from_another_failure_keeps_its_points_in_a_class(checks: list[str]) -> None:
    reports = {check: CheckReport(Outcome.PASSED) for check in checks}
    reports[checks[0]] = CheckReport(Outcome.FAILED, "wrong", answered=True)
    reports[checks[1]] = CheckReport(Outcome.FAILED, "wrong as well", answered=True, built_on=checks[0])
    once, again = both(reports)
    assert [check.follows_from for check in once.checks][:2] == ["", checks[0]]
    assert [check.follows_from for check in again.checks] == [check.follows_from for check in once.checks]
    assert again.score == once.score


def test_a_student_of_a_class_sees_the_pictures_of_failed_checks(checks: list[str]) -> None:
    reports = {check: CheckReport(Outcome.PASSED) for check in checks}
    reports[checks[0]] = CheckReport(Outcome.FAILED, "wrong", answered=True, picture=PICTURE)
    once, again = both(reports)
    assert again.checks == once.checks
    page = html.render(again, title="Course")
    assert "<svg" in page
    assert PICTURE.about in page
