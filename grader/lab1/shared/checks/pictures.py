"""Judges where plots are written. What they show: each criterion by itself. Not for looks."""

from __future__ import annotations

import math

from gradebox.run.assertions import require, require_equal
from grader.lab1.shared.cases.plots import PicturesReply

NEAR = 1e-3


def near(left: float, right: float) -> bool:
    """Whether two numbers in a plot are the same."""
    return math.isclose(left, right, rel_tol=NEAR, abs_tol=1e-12)


def require_written(function: str, reply: PicturesReply) -> None:
    """Fail unless a plot was written where it was asked for, and a place that cannot be written was an OSError."""
    for path in reply.paths:
        require(path.written, f"{function}(..., {path.requested!r}) wrote no such file")
        require_equal(path.returned, path.requested, what=f"{function}() returned")
    require_equal(
        reply.unwritable,
        "OSError",
        what=f"what {function}() raised for a path that lies below a file",
        hint="a plot that was not written must not look like one that was",
    )
