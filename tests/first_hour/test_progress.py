"""What a grade gained and lost since the last run, and that a damaged or foreign report is as if it were not there."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

import grader
from gradebox import report
from gradebox.report import html, progress
from gradebox.run.grade import SCHEMA_VERSION, CheckReport, Circumstances, Grade, Outcome, grade


def graded(failing: Collection[str] = (), labs: tuple[int, ...] = (1,), submission: str = "labs") -> Grade:
    """A grade of these labs in which everything passes but these checks."""
    course = grader.course().rubric
    reports = {
        check.id: CheckReport(Outcome.FAILED, "saw 1, expected 2", "look")
        if check.id in failing
        else CheckReport(Outcome.PASSED)
        for check in course.checks()
    }
    here = Circumstances(submission, "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    return grade(course, course.select(labs), reports, here, grader.course().titles(course.labs))


def run(folder: Path, result: Grade) -> progress.Progress | None:
    """Write a grade as a grading does; what it shows as progress."""
    earlier = progress.read(folder, result)
    report.write(result, folder, earlier)
    return progress.since(earlier, result)


def test_the_first_run_has_nothing_to_compare_with(tmp_path: Path) -> None:
    assert run(tmp_path, graded()) is None
    assert "Since the last run" not in (tmp_path / "grade.html").read_text()


def test_points_gained_and_lost_are_told_by_criterion(tmp_path: Path) -> None:
    run(tmp_path, graded(["lab1.benchmark.warmed_up", "lab1.memory.peak_equals_reference"]))
    changed = run(tmp_path, graded(["lab1.memory.peak_equals_reference", "lab1.analysis.bound_named"]))
    assert changed is not None
    assert [(change.criterion, change.gained) for change in changed.changes] == [
        ("lab1.benchmark", Decimal(1)),
        ("lab1.analysis", Decimal(-1)),
    ]
    assert [check.id for check in changed.newly_passed] == ["lab1.benchmark.warmed_up"]
    assert [check.id for check in changed.newly_failing] == ["lab1.analysis.bound_named"]
    title = grader.course().title_of("lab1.analysis.bound_named")
    line = f"0 points, 1 check newly passed, no longer passing: {title} (lab1.analysis.bound_named)"
    assert progress.line(changed) == f"since the last run: {line}"
    page = (tmp_path / "grade.html").read_text()
    assert "Since the last run: no points more or fewer" in page
    assert '<b class="more">+1</b>' in page
    assert '<b class="fewer">-1</b>' in page
    assert f'no longer passing:</span> <a href="#lab1.analysis.bound_named">{title}</a>' in page


def test_no_change_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, graded())
    report.show(graded(), [], [], progress.read(tmp_path, graded()))
    assert "since the last run: no change" in capsys.readouterr().out


def test_another_lab_in_between_loses_nothing(tmp_path: Path) -> None:
    run(tmp_path, graded(["lab1.benchmark.warmed_up"]))
    assert run(tmp_path, graded(labs=(2,))) is None
    changed = run(tmp_path, graded(labs=(1, 2)))
    assert changed is not None
    assert [change.criterion for change in changed.changes] == ["lab1.benchmark"]


def test_a_grade_json_alone_is_compared_with(tmp_path: Path) -> None:
    run(tmp_path, graded(["lab1.benchmark.warmed_up"]))
    (tmp_path / progress.FILE).unlink()
    changed = run(tmp_path, graded())
    assert changed is not None
    assert changed.gained == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '{"version": 2}', "[" * 100_000, '{"checks": 3}', "\x00"],
    ids=["empty", "cut", "list", "number", "null", "no keys", "deep", "wrong type", "null byte"],
)
def test_a_damaged_report_is_as_if_it_were_not_there(tmp_path: Path, text: str) -> None:
    for name in ("grade.json", progress.FILE):
        (tmp_path / name).write_text(text)
    assert run(tmp_path, graded()) is None
    changed = run(tmp_path, graded())
    assert changed is not None
    assert not changed.anything


def test_points_that_are_no_numbers_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    run(tmp_path, graded())
    for name in ("grade.json", progress.FILE):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(
            text.replace('"lab1.benchmark": 5.0', '"lab1.benchmark": "NaN"').replace(SCHEMA_VERSION, "9")
        )
    assert run(tmp_path, graded()) is None


def test_another_submission_or_rubric_is_left_aside(tmp_path: Path) -> None:
    run(tmp_path, graded())
    assert run(tmp_path, graded(submission="solutions")) is None
    run(tmp_path, graded())
    assert run(tmp_path, replace(graded(), rubric_version="2.0")) is None


def test_a_page_for_others_shows_no_progress() -> None:
    assert "Since the last run" not in html.render(graded())


def test_what_is_kept_is_small_and_plain(tmp_path: Path) -> None:
    run(tmp_path, graded(labs=(1, 2, 3, 4, 5)))
    kept = json.loads((tmp_path / progress.FILE).read_text())
    assert set(kept) == {"version", "submission", "rubric_version", "checks", "criteria", "messages", "blocked_by"}
    assert len(kept["checks"]) == len(list(grader.course().rubric.checks()))
