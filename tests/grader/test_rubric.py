"""This course: its points, and that its checks are those that its rubric pays for."""

from __future__ import annotations

import grader


def test_the_course_has_19_criteria_and_100_points() -> None:
    course = grader.course()
    assert course.rubric.points == sum(lab.points for lab in course.labs) == 100
    assert [lab.points for lab in course.labs] == [20, 20, 25, 20, 15]
    assert sum(len(lab.criteria) for lab in course.labs) == 19
    assert course.rubric.pass_percent == 70


def test_every_check_that_is_paid_for_is_written_and_has_a_title_of_its_own() -> None:
    course = grader.course()
    for lab in course.all_labs:
        checks = course.checks(lab)
        assert len(checks) == sum(len(criterion.checks) for criterion in lab.criteria)
        assert all(check.title and "\n" not in check.title for check in checks.values())


def test_what_people_are_told_to_type_is_this_courses() -> None:
    course = grader.course()
    assert "`make doctor`" in course.fix
    assert course.guide.typed == "make next"
    assert course.guide.typed_for == "make next LAB={lab}"
