"""A grade as JSON, in the format that `grade.schema.json` next to this file describes; `schema_version` counts it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebox.common import json_schema, reading
from gradebox.common.exit_codes import ExitCode
from gradebox.common.texts import printable_document
from gradebox.run.grade import SCHEMA_VERSION, Grade

SCHEMA_FILE = Path(__file__).with_name("grade.schema.json")


def to_document(grade: Grade) -> dict[str, Any]:
    """The grade as plain JSON values, with printable texts."""
    document: dict[str, Any] = printable_document(reading.plain(grade))
    document["exit_code"] = int(grade.exit_code)
    return document


def schema() -> dict[str, Any]:
    """The JSON Schema of what `to_document` gives; `grade.schema.json` is it, as a file."""
    definition = json_schema.of(Grade, "Grade")
    codes = {"enum": [int(code) for code in ExitCode],
             "description": "0 passed, 1 not passed, 2 could not grade, 3 needs review."}  # fmt: skip
    definition["properties"]["exit_code"] = codes
    definition["required"].append("exit_code")
    return definition


def to_json(grade: Grade) -> str:
    return json.dumps(to_document(grade), indent=2, ensure_ascii=False) + "\n"


def from_document(document: Mapping[str, Any]) -> Grade:
    """The grade that `to_document` made `document` from.

    Raises:
        ValueError: it is no grade.json, or one of another major version; the message is one line.
    """
    version = str(document.get("schema_version", "none")) if isinstance(document, Mapping) else "none"
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise ValueError(f"this is no grade.json that can be read: its schema_version is {version}")
    try:
        return reading.value(Grade, printable_document(document), Path("grade.json"), lenient=True)
    except (ValueError, ArithmeticError, AttributeError, TypeError) as error:
        raise ValueError(f"this is no grade.json: {error}") from None


def points(value: Decimal) -> str:
    """Points for people: `1.5`, `20`."""
    return f"{value.normalize():f}"


def duration(seconds: float) -> str:
    """A span of time for people, in its two largest units: `2 days 3 hours`, `5 minutes`."""
    minutes = max(1, round(seconds / 60))
    parts = [(minutes // 1440, "day"), (minutes % 1440 // 60, "hour"), (minutes % 60, "minute")]
    named = [f"{count} {unit}{'' if count == 1 else 's'}" for count, unit in parts if count]
    return " ".join(named[:2])
