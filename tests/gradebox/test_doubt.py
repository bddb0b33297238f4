"""What one grading makes of the reports of its checks, and of what was noticed next to them."""

from __future__ import annotations

import pytest

import grader
from gradebox.run.grade import CheckReport, CheckResult, Circumstances, Grade, IntegrityNote, Outcome, grade, in_doubt
from gradebox.sandbox import TAMPERING

VOID = "lab1.benchmark.warmed_up"
BESIDE = "lab1.benchmark.results_and_plot_saved"
ELSEWHERE = "lab1.analysis.bound_named"


def graded(*notes: IntegrityNote, void: bool = True) -> Grade:
    """Lab 1 where everything passes but one check, which is void or only wrong."""
    course = grader.course().rubric
    reports = {check.id: CheckReport(Outcome.PASSED) for check in course.checks()}
    reports[VOID] = CheckReport(Outcome.FAILED, "void: the clock was patched" if void else "too slow")
    here = Circumstances("labs", "ab" * 32, "virtual T4", True, "namespaces", 42, 1.0, integrity=notes)
    return grade(course, course.select((1,)), in_doubt(reports, notes), here)


def check_of(result: Grade, name: str) -> CheckResult:
    return next(
        check for lab in result.labs for criterion in lab.criteria for check in criterion.checks if check.id == name
    )


def note(kind: str, check: str, where: str = "") -> IntegrityNote:
    return IntegrityNote(kind, "time.perf_counter", where, check)


def test_what_passed_beside_a_void_check_is_a_persons_to_judge() -> None:
    result = graded(note(TAMPERING, VOID))
    assert check_of(result, VOID).outcome is Outcome.FAILED
    assert check_of(result, BESIDE).outcome is Outcome.NEEDS_REVIEW
    assert check_of(result, BESIDE).points == 0
    assert "another check of this criterion" in check_of(result, BESIDE).message
    assert check_of(result, ELSEWHERE).outcome is Outcome.PASSED


@pytest.mark.parametrize("kind", ["subprocess", "descendants", "ending"])
def test_no_other_note_costs_a_point(kind: str) -> None:
    assert check_of(graded(note(kind, VOID), void=False), BESIDE).outcome is Outcome.PASSED


def test_notes_come_in_the_rubrics_order_whoever_was_noticed_first() -> None:
    notes = [note("open", ELSEWHERE), note("open", VOID, "b.py:2"), note("open", VOID, "a.py:1"), note("import", "")]
    ordered = [(entry.check, entry.where) for entry in graded(*notes).integrity]
    assert ordered == [("", ""), (VOID, "a.py:1"), (VOID, "b.py:2"), (ELSEWHERE, "")]
    assert graded(*reversed(notes), *notes).integrity == graded(*notes).integrity
