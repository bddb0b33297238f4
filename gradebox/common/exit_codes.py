"""How a grading ends, as a shell sees it. Imports next to nothing, as a process that waits for a judge does."""

from __future__ import annotations

import sys
from enum import IntEnum

from gradebox.common.texts import printable


class ExitCode(IntEnum):
    """What `pytest --grade` returns to the shell."""

    PASSED = 0
    NOT_PASSED = 1
    COULD_NOT_GRADE = 2
    NEEDS_REVIEW = 3


def refuse(reason: str, what: str = "could not grade") -> ExitCode:
    """Say in one line why there is no grade; the exit code for that."""
    print(printable(f"{what}: {reason}"), file=sys.stderr)
    return ExitCode.COULD_NOT_GRADE
