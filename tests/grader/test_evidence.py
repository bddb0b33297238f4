"""Every check says where its evidence comes from, and what a submission could write is as little as can be."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

import grader
from gradebox.course.evidence import NOTICED_BY
from gradebox.course.rubric import Check
from tests.docs.markdown import ROOT
from tests.scenarios.test_constant_answers import EXCUSED

CHECKS = {check.id: check for lab in grader.course().all_labs for part in lab.criteria for check in part.checks}
MOST_NOTED_POINTS = Decimal(3)
"""Of a lab's 15 to 25, those that rest on nothing but notes of a probe in the submission's process."""


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.id)
def test_a_check_says_where_its_evidence_comes_from(check: Check) -> None:
    assert check.evidence, "criterion.toml: evidence = [...], see EVIDENCE in gradebox/course/evidence.py"


def test_what_answers_of_another_seed_pass_is_judged_by_more_than_values() -> None:
    """Values of another seed are wrong; what passes with them rests on something else, which its criterion names."""
    for name, reason in EXCUSED.items():
        if reason.startswith("seen by the probe"):
            assert set(CHECKS[name].evidence) & {"notes", "device", "system"}, name


@pytest.mark.parametrize("lab", [lab.id for lab in grader.course().labs])
def test_few_points_rest_on_notes_alone(lab: str) -> None:
    alone = [check for name, check in CHECKS.items() if name.startswith(f"{lab}.") and check.evidence == ("notes",)]
    assert sum((check.points for check in alone), Decimal(0)) <= MOST_NOTED_POINTS, [check.id for check in alone]


def test_the_page_lists_each_forgeable_check_once_and_the_most_dangerous_first() -> None:
    page = (ROOT / "docs" / "threat-model-evidence.md").read_text()
    rank = {name: NOTICED_BY.index(check.noticed_by) for name, check in CHECKS.items() if check.forgery}
    named = [name for name in re.findall(r"`([\w.]+)` \(", page) if name in rank]
    assert sorted(named) == sorted(rank)
    assert [rank[name] for name in named] == sorted(rank.values())
