"""What one grading makes of the reports of its checks, and of what was noticed beside them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gradebox.session import GradingSession

import grader
from gradebox.assertions import CheckFailed
from gradebox.devices import parse
from gradebox.grade import CheckResult, Grade, IntegrityNote, Outcome
from gradebox.sandbox import TAMPERING

VOID = "lab1.benchmark.warmed_up"
BESIDE = "lab1.benchmark.results_and_plot_saved"
ELSEWHERE = "lab1.analysis.bound_named"


def graded(*notes: IntegrityNote, void: bool = True) -> Grade:
    """Lab 1 where everything passes but one check, which is void or only wrong."""
    course = grader.course().rubric
    submission: Any = SimpleNamespace(integrity=notes, source_notes=lambda labs: ())
    sandbox: Any = SimpleNamespace(submission_sha256="ab" * 32, isolation=SimpleNamespace(mode="namespaces"))
    session = GradingSession(
        name="labs",
        rubric=course,
        labs=course.select((1,)),
        submission=submission,
        sandbox=sandbox,
        device=parse("vgpu:T4"),
        seed=42,
        report_folder=Path("nowhere"),
        owns_sandbox=False,
    )
    for check in course.labs[0].criteria:
        for one in check.checks:
            session.record_pass(one.id, 0.1)
    session.record_problem(VOID, CheckFailed("void: the clock was patched" if void else "too slow", ""), 0.1)
    return session.result()


def check_of(grade: Grade, name: str) -> CheckResult:
    return next(one for lab in grade.labs for criterion in lab.criteria for one in criterion.checks if one.id == name)


def note(kind: str, check: str, where: str = "") -> IntegrityNote:
    return IntegrityNote(kind, "time.perf_counter", where, check)


def test_what_passed_beside_a_void_check_is_a_persons_to_judge() -> None:
    grade = graded(note(TAMPERING, VOID))
    assert check_of(grade, VOID).outcome is Outcome.FAILED
    assert check_of(grade, BESIDE).outcome is Outcome.NEEDS_REVIEW
    assert check_of(grade, BESIDE).points == 0
    assert "another check of this criterion" in check_of(grade, BESIDE).message
    assert check_of(grade, ELSEWHERE).outcome is Outcome.PASSED


@pytest.mark.parametrize("kind", ["subprocess", "descendants", "ending"])
def test_no_other_note_costs_a_point(kind: str) -> None:
    assert check_of(graded(note(kind, VOID), void=False), BESIDE).outcome is Outcome.PASSED


def test_notes_come_in_the_rubrics_order_whoever_was_noticed_first() -> None:
    notes = [note("open", ELSEWHERE), note("open", VOID, "b.py:2"), note("open", VOID, "a.py:1"), note("import", "")]
    ordered = [(one.check, one.where) for one in graded(*notes).integrity]
    assert ordered == [("", ""), (VOID, "a.py:1"), (VOID, "b.py:2"), (ELSEWHERE, "")]
    assert graded(*reversed(notes), *notes).integrity == graded(*notes).integrity
