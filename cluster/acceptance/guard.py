"""Calls parts of the judge, so that one that breaks costs a check and not the report.

No judge should raise, whatever a worker records. If one does, the run is INCOMPLETE, the report says what broke, and
the records are in it: what was measured on a cluster for minutes is not measured again for a mistake of this program.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check

Result = TypeVar("Result")
REMEDY = "report this with the file of the report, whose `records` hold all that was measured; what did judge, counts"


class Guard:
    """Calls work that may raise, and keeps what broke."""

    def __init__(self) -> None:
        self.checks: list[Check] = []
        """One for each part that broke."""
        self.errors: dict[str, str] = {}
        """Their tracebacks, by part."""

    def __call__(self, part: str, work: Callable[[], Result], instead: Any) -> Result:
        """What `work` returns; `instead` if it raises."""
        try:
            return work()
        # A mistake of any kind: the report is worth more than its exception.
        except Exception as error:
            self.errors[part] = traceback.format_exc()
            self.checks.append(
                Check(
                    name=f"judge: {part}",
                    part="run",
                    subject="all ranks",
                    status="unverified",
                    evidence=f"this part of the report broke, and what it is about was not judged: {_one_line(error)}",
                    remedy=REMEDY,
                )
            )
            result: Result = instead
            return result

    def kept(self, records: Sequence[Record]) -> dict[str, Any]:
        """For the report: the records and the tracebacks, if anything broke."""
        return {"broken": self.errors, "records": [asdict(record) for record in records]} if self.errors else {}


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
