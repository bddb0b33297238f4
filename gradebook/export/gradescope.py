"""Gradescope's `results.json`, as its autograder specification describes it.

The format: https://gradescope-autograders.readthedocs.io/en/latest/specs/, written down in `gradescope.schema.json`
next to this file. Not for the autograder that Gradescope runs (`gradescope_autograder.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebook.export import by_hand, feedback
from gradebook.export.view import Line
from gradebook.lateness import deduction
from gradebox.common.texts import printable_document, sentence
from gradebox.report.document import duration, points
from gradebox.report.harmless import harmless_reasons
from gradebox.run.grade import CheckResult, CriterionResult, Grade, IntegrityNote, LabResult, Outcome

SCHEMA_FILE = Path(__file__).with_name("gradescope.schema.json")


def results(
    grade: Grade,
    *,
    score: Decimal | None = None,
    remarks: tuple[str, ...] = (),
    leaderboard: bool = False,
    ran: bool = True,
) -> dict[str, Any]:
    """One grade as Gradescope's results.

    Texts are declared plain (`text`), so that nothing in a student's message is taken for markup. Notes of the sandbox
    are in a test without points that students never see.

    Args:
        grade: the grade.
        score: instead of the grade's own, where something was deducted.
        remarks: sentences above the tests.
        leaderboard: offer the score for Gradescope's leaderboard.
        ran: whether anything ran; if not, an instructor gave points instead of a submission.
    """
    score = grade.score if score is None else score
    verdict = "passed" if score >= grade.pass_score and grade.max_score > 0 else "not passed"
    output = [
        f"{points(score)} of {points(grade.max_score)} points, {verdict} (pass at {points(grade.pass_score)}).",
        *remarks,
        *([f"Graded on {grade.device}; repeat with seed {grade.seed}."] if ran else []),
    ]
    if grade.needs_review:
        output.insert(1, "Provisional: some checks could not be decided and score 0 until an instructor has looked.")
    document: dict[str, Any] = {
        "score": float(score),
        "execution_time": round(grade.seconds, 3),
        "output": "\n".join(output),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [*_tests(grade), *_notes(grade.integrity)],
        "extra_data": {
            "schema_version": grade.schema_version,
            "rubric_version": grade.rubric_version,
            "submission_sha256": grade.submission_sha256,
            "seed": grade.seed,
            "isolation": grade.isolation,
        },
    }
    if leaderboard:
        document["leaderboard"] = [{"name": "Points", "value": float(score), "order": "desc"}]
    return document


def not_graded(reason: str) -> dict[str, Any]:
    """Results of a submission that could not be graded: no points, and why."""
    return {
        "score": 0.0,
        "output": f"The submission could not be graded: {reason.removeprefix('could not grade: ')}",
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [],
    }


def student_results(line: Line) -> dict[str, Any]:
    """One student's line of a class."""
    if line.grade is None:
        return not_graded(line.result.reason or line.result.status.replace("_", " "))
    late = line.result.late
    sentences = feedback.remarks(line)
    if late is not None:
        sentences += (f"{duration(late.seconds_late)} late: {deduction(late.points)}.",)
    made = results(line.grade, score=line.checks_score, remarks=sentences, ran=not line.given_instead)
    if line.by_hand_alone:
        made["output"] = "\n".join([f"{by_hand.total(line)}.", *sentences])
    made["tests"] += by_hand.tests(line)
    made["score"] = float(line.result.score if line.result.score is not None else line.grade.score)
    return made


def to_json(document: dict[str, Any]) -> str:
    return json.dumps(printable_document(document), indent=2, ensure_ascii=False) + "\n"


def _tests(grade: Grade) -> Iterator[dict[str, Any]]:
    for lab in grade.labs:
        for number, criterion in enumerate(lab.criteria, start=1):
            if criterion.override is not None:
                yield _overridden(lab, number, criterion)
            elif criterion.available:
                for position, check in enumerate(criterion.checks, start=1):
                    yield _test(grade, criterion, check, f"{lab.id.removeprefix('lab')}.{number}.{position}")


def _test(grade: Grade, criterion: CriterionResult, check: CheckResult, number: str) -> dict[str, Any]:
    texts = [] if check.outcome is Outcome.PASSED else [check.outcome.value.replace("_", " ").capitalize()]
    texts += [
        text
        for text in (
            sentence(grade.follows(check)),
            check.message,
            check.hint and f"Where to look: {check.hint}",
        )
        if text
    ]
    return {
        "name": f"{criterion.title}: {check.name}",
        "number": number,
        "score": float(check.points),
        "max_score": float(check.max_points),
        "status": "passed" if check.outcome is Outcome.PASSED else "failed",
        "output": "\n".join(texts),
        "tags": [criterion.id.partition(".")[0], criterion.id],
        "visibility": "visible",
        "extra_data": {"check": check.id, "outcome": check.outcome.value},
    }


def _overridden(lab: LabResult, number: int, criterion: CriterionResult) -> dict[str, Any]:
    """A criterion whose points an instructor gave: one test, because its checks no longer add up to them."""
    assert criterion.override is not None
    checks = [
        f"{check.outcome.value.replace('_', ' ')}: {check.name}. {check.message}".rstrip() for check in criterion.checks
    ]
    automatic = points(criterion.override.automatic_points)
    return {
        "name": criterion.title,
        "number": f"{lab.id.removeprefix('lab')}.{number}",
        "score": float(criterion.points),
        "max_score": float(criterion.max_points),
        "status": "passed" if criterion.points == criterion.max_points else "failed",
        "output": "\n".join(
            [f"Given by the instructor instead of {automatic}: {criterion.override.reason}", "", *checks]
        ).rstrip("\n"),
        "tags": [criterion.id.partition(".")[0], criterion.id],
        "visibility": "visible",
        "extra_data": {"criterion": criterion.id, "automatic_points": float(criterion.override.automatic_points)},
    }


def _notes(notes: tuple[IntegrityNote, ...]) -> Iterator[dict[str, Any]]:
    if notes:
        lines = [
            f"{note.kind}: {note.detail}{f' at {note.where}' if note.where else ''} [{note.check}]" for note in notes
        ]
        lines += [f"{kind}: {reason}" for kind, reason in harmless_reasons(notes)]
        yield {
            "name": "For the instructor's eyes: what the sandbox noticed",
            "output": "\n".join(lines),
            "status": "failed",
            "visibility": "hidden",
        }
