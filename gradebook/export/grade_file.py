"""The `grade.json` of one grading, or what it printed that gave none: what exports of one submission begin with."""

from __future__ import annotations

import json
from pathlib import Path

from gradebox.report.document import from_document
from gradebox.run.grade import Grade


class GradeFileError(ValueError):
    """It cannot be used; the message is one line."""


def load(path: Path) -> Grade:
    """The grade in a file.

    Raises:
        GradeFileError: it cannot be read, or the grading was not over.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise GradeFileError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise GradeFileError(f"{path} is no whole JSON file, so it is damaged or was cut off: grade again") from None
    try:
        grade = from_document(document)
    except (ValueError, AttributeError) as error:
        raise GradeFileError(f"{path}: {error}") from None
    if grade.incomplete:
        raise GradeFileError(f"{path} is not over ({grade.incomplete}), so its points are no result; grade again")
    return grade


def last_line(file: Path) -> str:
    """What a grading said last.

    Raises:
        GradeFileError: nobody can read it.
    """
    try:
        said = file.read_text("utf-8", "replace")
    except OSError as error:
        raise GradeFileError(f"{file} cannot be read: {error.strerror}") from None
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "the grader ended without a word"
