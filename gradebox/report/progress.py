"""Progress since the last run: what a grade gained and lost against the gradings before it in the same folder.

`progress.json` next to grade.json keeps the last outcome and message of each check, so that grading one lab in between
loses nothing. It is a convenience: what cannot be read, or belongs to another submission or rubric, is as if it were
not there. Not part of a grade, and never read by what exports grades.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebox.common import files
from gradebox.common.texts import printable_document
from gradebox.report.document import from_document, points
from gradebox.run.grade import CheckResult, Grade, Outcome

FILE = "progress.json"
_VERSION = 2


@dataclass(frozen=True)
class Earlier:
    """What is known of a submission from gradings before this one."""

    checks: Mapping[str, Outcome] = field(default_factory=dict)
    criteria: Mapping[str, Decimal] = field(default_factory=dict)
    """Points of each criterion."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """Why checks failed or were blocked."""
    blocked_by: Mapping[str, str] = field(default_factory=dict)
    """Of blocked checks, the one that failed."""


@dataclass(frozen=True)
class Change:
    """One criterion whose points changed."""

    criterion: str
    title: str
    before: Decimal
    now: Decimal

    @property
    def gained(self) -> Decimal:
        """Points; negative where some were lost."""
        return self.now - self.before


@dataclass(frozen=True)
class Progress:
    """What changed since the last run, of those criteria that both know."""

    changes: tuple[Change, ...]
    newly_passed: tuple[CheckResult, ...]
    newly_failing: tuple[CheckResult, ...]
    """Checks that passed last time and did not now."""

    @property
    def gained(self) -> Decimal:
        return sum((change.gained for change in self.changes), Decimal(0))

    @property
    def anything(self) -> bool:
        return bool(self.changes or self.newly_passed or self.newly_failing)


def read(folder: Path, grade: Grade) -> Earlier:
    """What the gradings before left in `folder` of the submission and rubric of `grade`; nothing where it is damaged.

    Where there is no progress.json, the grade.json that is still there says it.
    """
    for file, understand in ((FILE, _own), ("grade.json", _of_a_grade)):
        try:
            document = json.loads(files.read_text(folder / file))
            if (document["submission"], document["rubric_version"]) == (grade.submission, grade.rubric_version):
                return understand(document)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            continue
    return Earlier()


def since(earlier: Earlier, grade: Grade) -> Progress | None:
    """What `grade` changed; None where nothing of it was graded before."""
    changes: list[Change] = []
    passed: list[CheckResult] = []
    failing: list[CheckResult] = []
    compared = False
    for lab in grade.labs:
        for criterion in lab.criteria:
            if criterion.id not in earlier.criteria or not criterion.available:
                continue
            compared = True
            before = earlier.criteria[criterion.id]
            if before != criterion.points:
                changes.append(Change(criterion.id, criterion.title, before, criterion.points))
            for check in criterion.checks:
                was = earlier.checks.get(check.id)
                if was is not None and (was is Outcome.PASSED) != _passed(check):
                    (passed if _passed(check) else failing).append(check)
    return Progress(tuple(changes), tuple(passed), tuple(failing)) if compared else None


def to_json(earlier: Earlier, grade: Grade) -> str:
    """What the next grading reads: what is known now, this grade's own outcomes before older ones."""
    checks = {check: outcome.value for check, outcome in earlier.checks.items()}
    criteria: dict[str, float] = {criterion: float(value) for criterion, value in earlier.criteria.items()}
    messages, blocked_by = dict(earlier.messages), dict(earlier.blocked_by)
    for lab in grade.labs:
        for criterion in lab.criteria:
            if criterion.available:
                criteria[criterion.id] = float(criterion.points)
                checks.update({check.id: check.outcome.value for check in criterion.checks})
                for check in criterion.checks:
                    messages[check.id], blocked_by[check.id] = check.message, check.blocked_by
    document: dict[str, Any] = {
        "version": _VERSION,
        "submission": grade.submission,
        "rubric_version": grade.rubric_version,
        "checks": checks,
        "criteria": criteria,
        "messages": {check: text for check, text in messages.items() if text},
        "blocked_by": {check: name for check, name in blocked_by.items() if name},
    }
    return json.dumps(printable_document(document), indent=1, ensure_ascii=False) + "\n"


def line(progress: Progress | None) -> str:
    """Progress in one line for a terminal; empty where there is nothing to compare with."""
    if progress is None:
        return ""
    if not progress.anything:
        return "since the last run: no change"
    sign = "+" if progress.gained > 0 else ""
    parts = [f"{sign}{points(progress.gained)} points"]
    if count := len(progress.newly_passed):
        parts.append(f"{count} check{'s' if count > 1 else ''} newly passed")
    if count := len(progress.newly_failing):
        first = progress.newly_failing[0]
        more = f" and {count - 1} more" if count > 1 else ""
        parts.append(f"no longer passing: {first.name} ({first.id}){more}")
    return "since the last run: " + ", ".join(parts)


def _own(document: Mapping[str, Any]) -> Earlier:
    if document["version"] != _VERSION:
        raise ValueError("another version")
    return Earlier(
        {str(check): Outcome(outcome) for check, outcome in document["checks"].items()},
        {str(criterion): _points(value) for criterion, value in document["criteria"].items()},
        {str(check): str(text) for check, text in document["messages"].items()},
        {str(check): str(name) for check, name in document.get("blocked_by", {}).items()},
    )


def _of_a_grade(document: Mapping[str, Any]) -> Earlier:
    if document.get("incomplete"):
        raise ValueError("what it says of checks that did not run is nothing")
    criteria = [row for lab in from_document(document).labs for row in lab.criteria if row.available]
    return Earlier(
        {check.id: check.outcome for criterion in criteria for check in criterion.checks},
        {criterion.id: criterion.points for criterion in criteria},
        {check.id: check.message for criterion in criteria for check in criterion.checks if check.message},
        {check.id: check.blocked_by for criterion in criteria for check in criterion.checks if check.blocked_by},
    )


def _passed(check: CheckResult) -> bool:
    return check.outcome is Outcome.PASSED


def _points(value: Any) -> Decimal:
    number = Decimal(str(value))
    if not number.is_finite():
        raise ValueError(f"{value!r} are no points")
    return number
