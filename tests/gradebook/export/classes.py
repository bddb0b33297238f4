"""Synthetic classes: grades made by the grader's own arithmetic from chosen outcomes, without running anything."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import grader
from gradebook.results import ClassResult, LatePenalty, StudentResult
from gradebox.run.grade import CheckReport, Circumstances, Grade, IntegrityNote, Outcome, grade
from gradebox.run.overrides import Override

MADE_AT = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
HOSTILE = '<script>alert("x")</script> {{ 7 * 7 }} | `a` **b** $(id)'


def graded(
    reports: Mapping[str, CheckReport],
    *,
    labs: Sequence[int] = (1,),
    student: str = "ada",
    notes: Sequence[IntegrityNote] = (),
    overrides: Sequence[Override] = (),
) -> Grade:
    """A grade; checks that are not named passed."""
    rubric = grader.course().rubric
    chosen = rubric.select(tuple(labs))
    checks = [check.id for lab in chosen for criterion in lab.criteria for check in criterion.checks]
    everything = {check: reports.get(check, CheckReport(Outcome.PASSED, seconds=0.1)) for check in checks}
    content = hashlib.sha256(student.encode()).hexdigest()
    circumstances = Circumstances(
        student, content, "virtual T4 (simulated)", True, "namespaces", 7, 3.2, tuple(notes), tuple(overrides)
    )
    return grade(rubric, chosen, everything, circumstances)


def student(key: str, grade: Grade | None, **more: Any) -> StudentResult:
    """A graded student, or what `status` says."""
    late: LatePenalty | None = more.get("late")
    score = None
    if grade is not None:
        score = grade.score - (late.points if late else 0)
    return StudentResult(
        student=key, grade=grade, **{"status": "graded", "score": score, "submitted_at": MADE_AT} | more
    )


def a_class(students: Sequence[StudentResult], *, labs: Sequence[int] = (1,), title: str = "GPU labs") -> ClassResult:
    most = sum((lab.points for lab in grader.course().rubric.select(tuple(labs))), Decimal(0))
    return ClassResult(
        title=title,
        made_at=MADE_AT,
        rubric_version="1.0",
        grader_version="0.1.0",
        seed=7,
        device="vgpu:T4",
        labs=tuple(labs),
        max_score=most,
        students=tuple(sorted(students, key=lambda row: row.student)),
    )


def large_class(count: int, *, labs: Sequence[int] = (1, 2, 3, 4, 5), seed: int = 1) -> ClassResult:
    """Students of different ability on checks of different difficulty, with everything an export has to show."""
    draw = random.Random(seed)
    rubric = grader.course().rubric
    checks = [c.id for lab in rubric.select(tuple(labs)) for row in lab.criteria for c in row.checks]
    difficulty = {check: draw.gauss(-0.6, 0.8) for check in checks}
    rows = []
    for index in range(1, count + 1):
        key = f"student-{index:03d}"
        ability = draw.gauss(0, 1)
        reports = {check: _report(draw, check, ability - difficulty[check], checks) for check in checks}
        notes = []
        if draw.random() < 0.06:
            notes.append(IntegrityNote("open", "/etc/passwd", "lab1_gpu_basics/benchmark.py:12", draw.choice(checks)))
        overrides = []
        if draw.random() < 0.04:
            overrides.append(Override(key, "lab1.analysis", Decimal("4.5"), "right, in other units"))
        late = None
        if draw.random() < 0.1:
            late = LatePenalty(seconds_late=draw.uniform(600, 200_000), points=Decimal(0), rule="10 % per day, 1 day")
        made = graded(reports, labs=labs, student=key, notes=notes, overrides=overrides)
        if late is not None:
            lost = min(made.score, made.max_score / 10)
            late = LatePenalty(seconds_late=late.seconds_late, points=lost, rule=late.rule)
        rows.append(student(key, made, name=f"Student {index}", late=late))
    rows += [
        StudentResult(student=f"student-{count + 1:03d}", status="missing", score=Decimal(0)),
        StudentResult(student=f"student-{count + 2:03d}", status="waiting"),
        StudentResult(
            student=f"student-{count + 3:03d}", status="refused", score=Decimal(0),
            reason="the archive holds ../../etc/passwd, a path that climbs out; pack the folder of your labs only",
        ),
    ]  # fmt: skip
    return a_class(rows, labs=labs, title="GPU computing, spring")


def _report(draw: random.Random, check: str, lead: float, checks: Sequence[str]) -> CheckReport:
    if check == checks[-1]:
        return CheckReport(Outcome.FAILED, "the curve has 0 points, expected 12", "write the results first")
    if check == checks[5]:
        lead = -lead  # a bad check: weak submissions pass it
    if draw.random() < 0.004:
        return CheckReport(Outcome.NEEDS_REVIEW, "no answer in time, and the machine was busy", "grade again")
    if lead + draw.gauss(0, 0.5) > 0:
        return CheckReport(Outcome.PASSED, seconds=0.1)
    if draw.random() < 0.3:
        return CheckReport(Outcome.BLOCKED, f"blocked by {checks[0]}", blocked_by=checks[0])
    milliseconds = draw.uniform(0, 2)
    return CheckReport(
        Outcome.FAILED,
        f"1024 x 1024: {milliseconds:.3f} ms seen, 0.912 ms expected: the clock was stopped before the GPU was done",
        "synchronise before you stop the clock",
    )
