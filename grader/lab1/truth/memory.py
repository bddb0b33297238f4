"""The truth about one training step's memory: measured by a run of our own, in a child without the student's code."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradebox.assertions import mebibytes, number, require_between
from gradebox.fresh import Fresh
from gradebox.submission import Submission

TOLERANCE = 0.03
"""Share of the step's peak: room for a library workspace that one method allocates earlier than another."""

_ROOM = {"kept": (0.2, 2.0), "forward": (0.2, 2.0), "backward": (1.0, 2.5)}
"""Bytes that the network takes beyond what shapes tell, as parts of its parameters: several times TOLERANCE wide. The
backward pass takes enough for the peak to lie above what is held before it."""

_ALIGNMENT_BYTES = 512  # the caching allocator rounds every block up to this
_UNSPLIT_BYTES = 2**20  # and does not split off less than this from a large block, which then counts as a whole


def network(fresh: Fresh) -> dict[str, Any]:
    """A fully connected network large enough that library workspaces do not matter, of odd and random widths.

    The same for all checks of one grading, so that the student's profile of it is made once.
    """
    return _drawn(fresh.shared("lab1.memory"))


def networks(fresh: Fresh) -> list[dict[str, Any]]:
    """The same network and another one, in any order."""
    return fresh.shuffled([network(fresh), _drawn(fresh)])


def _drawn(fresh: Fresh) -> dict[str, Any]:
    # Two that are alike within the tolerances are rare: bytes seen in one grading are no answer in the next.
    scale = fresh.uniform(1.0, 1.5)
    widths = [fresh.odd(int(1401 * scale), int(1801 * scale)) for _ in range(fresh.integer(4, 6))]
    widths = [*widths, fresh.odd(11, 99)]
    room = [round(fresh.uniform(*_ROOM[part]) * parameter_bytes(widths)) for part in ("kept", "forward", "backward")]
    return {"widths": widths, "batch": fresh.odd(901, 2101), "room": room}


def parameter_bytes(widths: list[int], bytes_per_element: int = 4) -> int:
    """Bytes of weights and biases, each tensor rounded up as the caching allocator does."""
    elements = [count for before, after in itertools.pairwise(widths) for count in (before * after, after)]
    return sum(-(-count * bytes_per_element // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for count in elements)


def require_parameters(held: float, widths: list[int], bytes_per_element: int, what: str, hint: str = "") -> None:
    """Fail unless `held` bytes are what these parameters take on the device."""
    least = parameter_bytes(widths, bytes_per_element)
    most = least + (len(widths) - 1) * _UNSPLIT_BYTES
    shown = f"{mebibytes(least)}, and at most {mebibytes(most - least)} more in blocks that were not split"
    require_between(held, 0.99 * least, 1.01 * most, what=what, show=mebibytes, expected=shown, hint=hint)


@dataclass(frozen=True)
class Truth:
    """What a reference run held at the end of each stage."""

    stages: Mapping[str, Mapping[str, int]]

    def compare(self, profile: Mapping[str, Any], field: str, hint: str) -> None:
        """Fail unless `field` agrees in every stage, within TOLERANCE of the step's peak."""
        slack = TOLERANCE * max(stage["peak_bytes"] for stage in self.stages.values())
        for stage in profile["stages"]:
            real = self.stages[stage["stage"]][field]
            require_between(
                stage[field],
                real - slack,
                real + slack,
                what=f"{field} of stage {stage['stage']!r}",
                show=mebibytes,
                expected=f"{mebibytes(real)}, give or take {mebibytes(slack)}",
                hint=hint,
            )

    def compare_falls(self, profile: Mapping[str, Any], hint: str) -> None:
        """Fail unless the peak of every stage lies as far below the largest as it should, within the same TOLERANCE."""
        largest = max(stage["peak_bytes"] for stage in self.stages.values())
        told = max(number(stage["peak_bytes"], "peak_bytes") for stage in profile["stages"])
        slack = TOLERANCE * largest
        for stage in profile["stages"]:
            real = largest - self.stages[stage["stage"]]["peak_bytes"]
            require_between(
                told - number(stage["peak_bytes"], "peak_bytes"),
                real - slack,
                real + slack,
                what=f"how far peak_bytes of stage {stage['stage']!r} lies below the largest peak of the step",
                show=mebibytes,
                expected=f"{mebibytes(real)}, give or take {mebibytes(slack)}",
                hint=hint,
            )


def truth(submission: Submission, case: Mapping[str, Any]) -> Truth:
    """Run the step of `case` by ourselves on the same device."""
    seen = submission.probe("lab1.memory_truth.memory", values=False, student=False, **case)
    return Truth({stage["stage"]: stage for stage in seen.stages})
