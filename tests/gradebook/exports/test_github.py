"""GitHub Classroom: the workflow file and what it reports."""

import base64
import json

import pytest

import grader
from gradebook.exports import github
from gradebook.exports.github import WorkflowError
from gradebox.grade import CheckReport, Outcome
from tests.gradebook.exports.classes import HOSTILE, graded


def test_the_workflow_has_no_more_rights_than_the_reporter_needs() -> None:
    text = github.workflow(grader.course())
    block = text.partition("permissions:\n")[2].partition("\n\n")[0]
    rights = [line.split("#")[0].strip() for line in block.splitlines()]
    assert rights == ["contents: read", "actions: read", "checks: write"]
    assert "persist-credentials: false" in text


def test_the_workflow_grades_the_wanted_labs() -> None:
    assert "run: make grade LAB=1,3\n" in github.workflow(grader.course(), lab="1,3")
    assert "run: make grade\n" in github.workflow(grader.course())


def test_a_lab_that_there_is_not_is_refused() -> None:
    with pytest.raises(WorkflowError, match="there is no lab 9; the labs are 1, 2, 3, 4, 5"):
        github.workflow(grader.course(), lab="9")


def test_labs_cannot_smuggle_in_a_command() -> None:
    with pytest.raises(WorkflowError):
        github.workflow(grader.course(), lab="1; curl example.org | sh")


def test_the_reporter_is_told_every_criterion_with_its_points() -> None:
    grade = graded({"lab1.benchmark.warmed_up": CheckReport(Outcome.FAILED, HOSTILE)})
    line = github.reporter_result(grade)
    made = json.loads(base64.b64decode(line))
    assert "\n" not in line
    assert (made["status"], made["max_score"]) == ("pass", 20)
    assert sum(test["score"] for test in made["tests"]) == 19
    assert [test["status"] for test in made["tests"]] == ["fail", "pass", "pass", "pass"]
    assert HOSTILE in made["tests"][0]["message"]


def test_the_summary_is_a_table_of_criteria() -> None:
    text = github.summary(graded({}))
    assert "| Lab 1: Memory profiling | 5 / 5 | 7 / 7 |" in text
