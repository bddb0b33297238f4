"""What the exception of a check says of the submission, or of the check itself.

Not for how a submission's process ended (`gradebox/run/endings.py`), which comes here as an exception already.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gradebox.run.assertions import CheckFailed, NeedsReview
from gradebox.run.endings import COURSE_IS_WRONG, SANDBOX_FAILED
from gradebox.run.grade import CheckReport, Outcome
from gradebox.sandbox import SandboxError


class Blocked(Exception):
    """A check this one builds on has not passed."""

    def __init__(self, by: str, message: str) -> None:
        super().__init__(message)
        self.by = by


def of_error(error: Exception, course: Path) -> CheckReport:
    """The report of a check that ended with `error`; `course` is the folder whose lines are named where it failed."""
    match error:
        case CheckFailed():
            report = CheckReport(
                Outcome.FAILED,
                error.message,
                error.hint,
                answered=error.answered,
                picture=error.picture,
                evidence=error.evidence,
            )
            if error.cause is not None:
                report = replace(
                    report, cause=error.cause.name, belongs_to=error.cause.check, mistake=error.cause.mistake
                )
            return report
        case NeedsReview():
            return CheckReport(Outcome.NEEDS_REVIEW, error.message, error.hint)
        case Blocked():
            return CheckReport(Outcome.BLOCKED, str(error), blocked_by=error.by)
        case SandboxError():
            return CheckReport(Outcome.NEEDS_REVIEW, f"{SANDBOX_FAILED}: {error}", "grade again")
    return CheckReport(Outcome.NEEDS_REVIEW, _of_check(error, course), COURSE_IS_WRONG)


def of_disturbance(failed: CheckReport, disturbances: Iterable[str]) -> CheckReport:
    """The report of a check that failed by what it measured on a device that something disturbed."""
    why = "; ".join(dict.fromkeys(disturbances))
    return CheckReport(
        Outcome.NEEDS_REVIEW,
        f"the device was disturbed while this was measured ({why}). The check reported: {failed.message}",
        "grade again when nothing else uses the device",
    )


def _of_check(error: Exception, course: Path) -> str:
    """What a check says that has failed itself, and the line of the course where it did."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(course)
    ]
    if not frames:
        return f"the check itself failed: {type(error).__name__}: {error}"
    at = f"{Path(frames[-1].filename).relative_to(course)}:{frames[-1].lineno}"
    if type(error) is AssertionError and not str(error):
        return f"the check itself failed at {at}: `{frames[-1].line}` does not hold; use require() for students"
    return f"the check itself failed at {at}: {type(error).__name__}: {error}"
