"""Every check of the course has a title in words, which is what people see of it."""

from __future__ import annotations

import csv
import io
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import grader
from gradebook.export import feedback, gradescope, page, review_list, statistics, tables, view
from gradebook.grading import class_summary
from gradebook.plugins.classroom50 import assignment
from gradebook.results import ClassResult, StudentResult
from gradebook.store import Plan, Recorded
from gradebox.course.criterion import CheckFunction
from gradebox.course.rubric import Lab
from gradebox.report.document import from_document, to_document
from gradebox.report.html import breaks
from gradebox.run.grade import CheckReport, Circumstances, Grade, Outcome, grade
from gradebox.run.overrides import Override

COURSE = grader.course()
LABS = pytest.mark.parametrize("lab", COURSE.all_labs, ids=lambda lab: lab.id)
LONGEST = 70
WIDTH = 100
"""Of a report that is no terminal's; the line of a check is its mark, its title and its id."""
BEFORE, BETWEEN = 12, 2


def checks_of(lab: Lab) -> list[CheckFunction]:
    COURSE.prepare()
    return list(COURSE.checks(lab).values())


@LABS
def test_a_title_is_one_line_without_a_full_stop(lab: Lab) -> None:
    for check in checks_of(lab):
        assert check.title, check.id
        assert "\n" not in check.title, check.id
        assert not check.title.endswith("."), check.id


@LABS
def test_a_title_is_a_requirement_in_the_imperative(lab: Lab) -> None:
    """`Warm up before it measures`, not `Warms up`."""
    for check in checks_of(lab):
        first = check.title.split()[0]
        assert first[0].isupper(), check.id
        assert first == "Pass" or not first.endswith("s"), check.id


@LABS
def test_a_title_stands_for_one_check_of_a_criterion(lab: Lab) -> None:
    counts = Counter((check.id.rpartition(".")[0], check.title) for check in checks_of(lab))
    assert [key for key, count in counts.items() if count > 1] == []


@LABS
def test_a_title_fits_its_line_with_the_id(lab: Lab) -> None:
    for check in checks_of(lab):
        assert len(check.title) <= LONGEST, check.id
        assert BEFORE + len(check.title) + BETWEEN + len(check.id) <= WIDTH, check.id


def test_the_course_knows_the_title_of_one_check() -> None:
    check = checks_of(COURSE.labs[0])[0]
    assert COURSE.title_of(check.id) == check.title


HERE = Circumstances("ada", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)


def test_a_check_that_did_not_report_has_its_title_too() -> None:
    titles = COURSE.titles(COURSE.labs)
    made = grade(COURSE.rubric, COURSE.labs, {}, HERE, titles)
    assert {check.id: check.title for check in made.checks} == titles
    assert {check.id: check.name for check in made.checks} == titles


def test_a_grade_from_before_there_were_titles_calls_a_check_by_its_id() -> None:
    document = to_document(grade(COURSE.rubric, COURSE.labs[:1], {}, HERE, COURSE.titles(COURSE.labs)))
    document["schema_version"] = "1.2"
    for criterion in document["labs"][0]["criteria"]:
        for check in criterion["checks"]:
            del check["title"]
    assert all(check.name == check.id for check in from_document(document).checks)


def test_a_classs_grade_has_the_titles_that_its_gradings_had() -> None:
    lab = COURSE.labs[0]
    plan = Plan(
        title="", labs=(1,), device="vgpu:T4", seed=42, rubric_version="1", rubric_digest="", grader_version="1",
        digests={}, settings={},
    )  # fmt: skip
    gradings = {}
    for number, criterion in enumerate(lab.criteria):
        titles = {
            check.id: f"{check.id} as grading {number} called it"
            for sibling in lab.criteria
            for check in sibling.checks
        }
        reports = {check: CheckReport(Outcome.PASSED) for check in titles}
        made = grade(COURSE.rubric, COURSE.rubric.select_criteria([criterion.id]), reports, HERE, titles)
        gradings[criterion.id] = Recorded(number, "graded", "", False, 1.0, "namespaces", made)
    whole = class_summary.assemble(gradings, plan, COURSE.rubric, (lab,), "ada", "ab" * 32)
    assert {check.id: check.title for check in whole.checks} == {
        check.id: f"{check.id} as grading {number} called it"
        for number, criterion in enumerate(lab.criteria)
        for check in criterion.checks
    }


WARMED, WARMED_TITLE = "lab1.benchmark.warmed_up", "Warm up before it measures"
PEAK, PEAK_TITLE = "lab1.memory.peak_equals_reference", "Report the peak of each stage"


def a_class(*overrides: Override) -> view.View:
    """Of one student, who fails one check, and another of whose checks a person has to look at."""
    lab = COURSE.labs[0]
    reports = {check.id: CheckReport(Outcome.PASSED) for criterion in lab.criteria for check in criterion.checks}
    reports[WARMED] = CheckReport(Outcome.FAILED, "saw 60 ms")
    reports[PEAK] = CheckReport(Outcome.NEEDS_REVIEW, "cannot tell")
    here = Circumstances(
        "ada", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21, overrides=overrides
    )  # fmt: skip
    made = grade(COURSE.rubric, (lab,), reports, here, COURSE.titles((lab,)))
    ada = StudentResult(student="ada", status="graded", grade=made, score=made.score)
    return view.of(
        ClassResult(
            title="GPU labs", made_at=datetime(2026, 3, 2, tzinfo=UTC), rubric_version="1", grader_version="1", seed=42,
            device="vgpu:T4", labs=(1,), max_score=lab.points, students=(ada,),
        )
    )  # fmt: skip


def grade_of(class_view: view.View) -> Grade:
    made = class_view.lines[0].grade
    assert made is not None
    return made


def test_a_students_feedback_calls_a_check_by_its_title_and_has_the_id_beside_it() -> None:
    (line,) = a_class().lines
    assert f"- {WARMED_TITLE} (`{WARMED}`): **failed**, 0 of 1\n" in feedback.markdown(line, "GPU labs")
    assert f"Benchmark implementation: 4 / 5. {WARMED_TITLE}: saw 60 ms" in feedback.summary(line)
    assert f'</span>{WARMED_TITLE} <code class="id">{breaks(WARMED)}</code></span>' in feedback.page(line, "GPU labs")


def test_the_page_of_a_class_calls_a_check_by_its_title() -> None:
    class_view = a_class()
    text = page.render(class_view, statistics.of(class_view), command="gpulabs review DIR", feedback=None)
    named = f'{WARMED_TITLE} <code class="id">{breaks(WARMED)}</code>'
    assert f"<summary>{named}" in text  # of those that most failed
    assert f"<td>{named}" in text  # of all checks
    assert f'{PEAK_TITLE} <code class="id">{breaks(PEAK)}</code>: cannot tell' in text
    assert f"<code>{WARMED}</code>" not in text


def test_the_list_of_reviews_and_the_table_of_checks_have_titles() -> None:
    class_view = a_class()
    assert f"needs review: {PEAK_TITLE}: cannot tell [{PEAK}]" in review_list.text(class_view, Path("DIR"))
    rows = {
        row["check"]: row for row in csv.DictReader(io.StringIO(tables.checks(statistics.of(class_view)), newline=""))
    }
    assert (rows[WARMED]["title"], rows[WARMED]["failed"]) == (WARMED_TITLE, "1")


def test_platforms_are_told_titles() -> None:
    override = Override("ada", "lab1.memory", Decimal("4.5"), "right, in other units")
    made = grade_of(a_class(override))
    tests = gradescope.results(made)["tests"]
    names = {test["extra_data"].get("check"): test["name"] for test in tests}
    assert names[WARMED] == f"Benchmark implementation: {WARMED_TITLE}"
    (by_hand,) = [test for test in tests if test["name"] == "Memory profiling"]
    assert f"needs review: {PEAK_TITLE}. cannot tell" in by_hand["output"]
    document = assignment.result(made, {})
    assert document["tests"][0]["output"] == f"{WARMED_TITLE}: saw 60 ms"
