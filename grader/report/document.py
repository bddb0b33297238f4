"""A grade as JSON, in the format that `grade.schema.json` beside this file describes; `schema_version` counts it."""

from __future__ import annotations

import json
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

from grader.grade import Grade

SCHEMA_FILE = Path(__file__).with_name("grade.schema.json")


def to_document(grade: Grade) -> dict[str, Any]:
    """The grade as plain JSON values."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(grade), default=_plain))
    document["exit_code"] = int(grade.exit_code)
    return document


def to_json(grade: Grade) -> str:
    return json.dumps(to_document(grade), indent=2, ensure_ascii=False) + "\n"


def points(value: Decimal) -> str:
    """Points for people: `1.5`, `20`."""
    return f"{value.normalize():f}"


def _plain(value: object) -> float | int:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError(f"no JSON form for {type(value).__name__}")
