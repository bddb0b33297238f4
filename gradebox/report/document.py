"""A grade as JSON, in the format that `grade.schema.json` beside this file describes; `schema_version` counts it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebox.grade import (
    SCHEMA_VERSION,
    CheckResult,
    CriterionResult,
    Grade,
    IntegrityNote,
    LabResult,
    Outcome,
    OverrideResult,
)
from gradebox.texts import printable_document

SCHEMA_FILE = Path(__file__).with_name("grade.schema.json")

_PLAIN_FIELDS = frozenset(field.name for field in fields(Grade)) - {
    *("score", "max_score", "pass_score", "integrity", "labs"),
}


def to_document(grade: Grade) -> dict[str, Any]:
    """The grade as plain JSON values, with printable texts."""
    document: dict[str, Any] = printable_document(json.loads(json.dumps(asdict(grade), default=_plain)))
    document["exit_code"] = int(grade.exit_code)
    return document


def to_json(grade: Grade) -> str:
    return json.dumps(to_document(grade), indent=2, ensure_ascii=False) + "\n"


def from_document(document: Mapping[str, Any]) -> Grade:
    """The grade that `to_document` made `document` from.

    Raises:
        ValueError: it is no grade.json, or one of another major version; the message is one line.
    """
    version = str(document.get("schema_version", "none"))
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise ValueError(f"this is no grade.json that can be read: its schema_version is {version}")
    try:
        return _grade(printable_document(document))
    except (KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"this is no grade.json: {type(error).__name__} {error}") from None


def _grade(document: Mapping[str, Any]) -> Grade:
    plain: dict[str, Any] = {key: value for key, value in document.items() if key in _PLAIN_FIELDS}
    exact: dict[str, Any] = {key: _exact(document[key]) for key in ("score", "max_score", "pass_score")}
    notes = tuple(IntegrityNote(**note) for note in document["integrity"])
    return Grade(**plain, **exact, integrity=notes, labs=tuple(map(_lab, document["labs"])))


def _lab(lab: Mapping[str, Any]) -> LabResult:
    criteria = tuple(map(_criterion, lab["criteria"]))
    amounts = _exact(lab["points"]), _exact(lab["max_points"])
    return LabResult(lab["id"], lab["title"], *amounts, lab["available"], criteria)


def _criterion(criterion: Mapping[str, Any]) -> CriterionResult:
    checks = tuple(
        CheckResult(
            check["id"],
            _exact(check["points"]),
            _exact(check["max_points"]),
            Outcome(check["outcome"]),
            check["message"],
            check["hint"],
            check["seconds"],
        )
        for check in criterion["checks"]
    )
    override = criterion.get("override")
    given = None if override is None else OverrideResult(_exact(override["automatic_points"]), override["reason"])
    amounts = _exact(criterion["points"]), _exact(criterion["max_points"])
    return CriterionResult(criterion["id"], criterion["title"], *amounts, criterion["available"], checks, given)


def _exact(value: float | int) -> Decimal:
    """Points as the rubric writes them: 0.1 is a tenth, not the float next to it."""
    return Decimal(str(value))


def points(value: Decimal) -> str:
    """Points for people: `1.5`, `20`."""
    return f"{value.normalize():f}"


def duration(seconds: float) -> str:
    """A span of time for people, in its two largest units: `2 days 3 hours`, `5 minutes`."""
    minutes = max(1, round(seconds / 60))
    parts = [(minutes // 1440, "day"), (minutes % 1440 // 60, "hour"), (minutes % 60, "minute")]
    named = [f"{count} {unit}{'' if count == 1 else 's'}" for count, unit in parts if count]
    return " ".join(named[:2])


def _plain(value: object) -> float | int:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError(f"no JSON form for {type(value).__name__}")
