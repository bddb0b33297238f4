"""Attempts that Lab 4's handler is given: from how many samples on, how many fit, what they raise and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.shared.cases import full_rows

SHAPES = "mat1 and mat2 shapes cannot be multiplied"
HOST = "DefaultCPUAllocator: not enough memory: the host is out of memory"

_ATTEMPTS: dict[str, Sequence[Any]] = {
    "start": ("one", "several"),
    "fits": ("at once", "later", "never"),
    "raises": (None, "RuntimeError", "ValueError", "MemoryError"),
    "message": (SHAPES, HOST),
    "cycle": (False, True),
    "returns_nothing": (False, True),
}


def _can_be_tried(row: Mapping[str, Any]) -> bool:
    """An attempt that never fits comes to no other end, and one of 1 cannot be halved."""
    return not (
        (row["fits"] == "never" and (row["raises"] or row["returns_nothing"]))
        or (row["fits"] == "later" and row["start"] == "one")
        or (row["raises"] and row["returns_nothing"])
    )


def sizes_tried(case: Mapping[str, Any]) -> list[int]:
    """Halved until one fits, or none is left."""
    sizes = [case["start"]]
    while sizes[-1] > max(1, case["fits"]):
        sizes.append(sizes[-1] // 2)
    return sizes


def retried(submission: Submission, generator: InputGenerator) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Attempts, and what was seen of each; the same for all checks of a grading."""
    generator = generator.shared("lab4.retry")
    cases: list[dict[str, Any]] = [
        {"start": generator.odd(41, 63), "fits": generator.integer(6, 9), "cycle": generator.integer(0, 1) == 1},
        {"start": 1, "fits": 1},
        {"start": generator.integer(8, 20), "fits": 20},
        {"start": generator.integer(5, 7), "fits": 0},
        {"start": generator.integer(5, 15), "fits": 4, "cycle": True, "returns_nothing": True},
        {"start": 1, "fits": 99, "raises": "RuntimeError", "message": SHAPES},
        {"start": generator.integer(16, 31), "fits": 99, "raises": "ValueError", "message": SHAPES},
        {"start": generator.integer(16, 31), "fits": 99, "raises": "MemoryError", "message": "out of memory"},
        # The second attempt fits, and fails for a reason of its own.
        {"start": generator.integer(16, 31), "fits": 15, "raises": "RuntimeError", "message": HOST},
    ]
    for row in full_rows(generator, _ATTEMPTS, 4, _can_be_tried):
        start = 1 if row["start"] == "one" else generator.integer(9, 31)
        cases.append(
            {
                "start": start,
                "fits": {"at once": start, "later": generator.integer(2, 8), "never": 0}[row["fits"]],
                "cycle": row["cycle"],
                "returns_nothing": row["returns_nothing"],
                **({"raises": row["raises"], "message": row["message"]} if row["raises"] else {}),
            }
        )
    seen = submission.probe("lab4.oom.retry", values=not submission.device.simulated, cases=cases)
    return list(zip(cases, seen.cases, strict=True))
