"""What the last gradings said of each check, and whether the code has changed since."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradebox.common import files
from gradebox.report import progress
from gradebox.report.document import from_document
from gradebox.run.grade import Grade, Outcome
from gradebox.sandbox import copying
from gradebox.sandbox.types import SubmissionError

_SHOWN = 3


@dataclass(frozen=True)
class Known:
    """The last that is known of one check."""

    outcome: Outcome
    message: str = ""
    hint: str = ""
    blocked_by: str = ""
    """Of a blocked check: the one that failed."""
    follows_from: str = ""
    """Of a failed check: the one that failed by the same mistake."""


@dataclass(frozen=True)
class LatestOutcomes:
    """What a folder of reports says of a submission."""

    checks: Mapping[str, Known]
    grade: Grade | None
    """The last one; None where there is none that can be read."""
    remark: str = ""
    """Why a report could not be used, or how it is out of date; empty where all is well."""


def read(submission: Path, report: Path) -> LatestOutcomes:
    """What `report`/grade.json and the gradings before it say of `submission`. Never raises for what it cannot read."""
    file = report / "grade.json"
    try:
        grade = from_document(json.loads(files.read_text(file)))
    except FileNotFoundError:
        return LatestOutcomes({}, None)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return LatestOutcomes({}, None, f"{file} cannot be read ({error}): grade again to replace it")
    if Path(grade.submission).resolve() != submission.resolve() and Path(grade.submission).name != submission.name:
        return LatestOutcomes({}, None, f"{file} is about {grade.submission}, not {submission}: it is left aside")
    earlier = progress.read(report, grade)
    checks = {
        check: Known(outcome, earlier.messages.get(check, ""), blocked_by=earlier.blocked_by.get(check, ""))
        for check, outcome in earlier.checks.items()
    }
    for lab in grade.labs:
        for criterion in lab.criteria:
            for check in criterion.checks:
                checks[check.id] = Known(check.outcome, check.message, check.hint, check.blocked_by, check.follows_from)
    return LatestOutcomes(checks, grade, _age(submission, file, grade))


def _age(submission: Path, file: Path, grade: Grade) -> str:
    """In words, how the submission differs from the one that was graded; empty where it does not."""
    try:
        entries = copying.scan(submission)
        with tempfile.TemporaryDirectory() as room:
            if copying.write(entries, Path(room, "labs")) == grade.submission_sha256:
                return ""
        graded = file.stat().st_mtime_ns
    except (OSError, SubmissionError):
        return ""
    newer = [entry.target for entry in entries if entry.modified_ns > graded]
    shown = ", ".join(newer[:_SHOWN]) + (f" and {len(newer) - _SHOWN} more" if len(newer) > _SHOWN else "")
    return f"the last grade is older than your work ({shown or 'files were added or removed'}): grade again to be sure"
