"""How large the work of a check may be on the real card of this grading: what takes 1 ms on one takes 100 on another.

A check draws the shape of its work and scales it by what the card was measured to do. Not for virtual GPUs, whose cost
model says how long work takes. Not here: the measurement (`grader.shared.probes.card`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gradebox.run.submission import Submission
from grader.shared.cases import MeasureCard

_STEP_BYTES = 2**28


@dataclass(frozen=True)
class Card:
    """What a real card does. Speeds are rounded down to powers of two, so that gradings on one card ask the same."""

    flops: Mapping[str, float]
    """Floating-point operations per second of a square product, by dtype."""
    memory_bytes: int
    free_bytes: int
    """Of its memory, rounded down to whole `_STEP_BYTES`: what other processes hold is theirs."""

    def largest_size(self, seconds: float, dtype: str = "float32") -> float:
        """Rows of the largest square product that takes no longer than this."""
        return math.cbrt(seconds * self.flops[dtype] / 2)


def card_of(submission: Submission) -> Card | None:
    """The card of this grading; None if its device is virtual or a CPU."""
    if submission.device.simulated or submission.device.name == "cpu":
        return None
    reply = submission.probe(MeasureCard(), student=False, values=False)
    return Card(
        flops={dtype: 2.0 ** math.floor(math.log2(flops)) for dtype, flops in reply.flops.items()},
        memory_bytes=int(reply.memory_bytes),
        free_bytes=int(reply.free_bytes) // _STEP_BYTES * _STEP_BYTES,
    )
