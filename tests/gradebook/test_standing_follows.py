"""A class counts what follows from what as one grade does."""

from __future__ import annotations

from dataclasses import replace

import grader
from gradebook import standing
from gradebook.store import Plan, Recorded
from gradebox.grade import CheckReport, Circumstances, Outcome, grade


def test_what_follows_from_another_failure_keeps_its_points_in_a_class() -> None:
    points = grader.course().rubric
    lab = points.labs[0]
    criterion = next(one for one in lab.criteria if len(one.checks) >= 4)
    alone = replace(lab, criteria=(criterion,))
    checks = [check.id for check in criterion.checks]
    reports = {check: CheckReport(Outcome.PASSED) for check in checks}
    reports[checks[0]] = CheckReport(Outcome.FAILED, "wrong", answered=True)
    reports[checks[1]] = CheckReport(Outcome.FAILED, "wrong as well", answered=True, built_on=checks[0])
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
    again = standing.assemble({criterion.id: recorded}, plan, points, [alone], "ada", "0" * 64)
    assert [check.follows_from for check in once.checks][:2] == ["", checks[0]]
    assert [check.follows_from for check in again.checks] == [check.follows_from for check in once.checks]
    assert again.score == once.score
