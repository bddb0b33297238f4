"""What checkpointing keeps, and which interval is the best."""

from __future__ import annotations

from dataclasses import dataclass

from grader.lab4.checkpointing.cases.types import Choice


@dataclass(frozen=True)
class Kept:
    """Bytes that a forward pass may keep with one interval: one tensor per segment, as large as the model's input.

    It is one for the input of each segment and one for the output, without the model's own input.
    """

    segments: int
    every_segment: float
    """If each segment is checkpointed."""
    all_but_last: float
    """If the last segment is kept as a whole, as `checkpoint_sequential` does."""


def kept_bytes(layers: int, interval: int, unit: float, plain: float) -> Kept:
    """What is kept of so many layers; `unit` bytes are one tensor, `plain` bytes all that is kept otherwise."""
    segments, last = -(-layers // interval), (layers - 1) % interval + 1
    return Kept(segments, segments * unit, (segments - 1) * unit + last * plain / layers)


def best_interval(choice: Choice) -> int | None:
    """The interval of the fastest measurement within the budget, then of the smallest; there must be one."""
    return min(choice.fitting, key=lambda row: row[1:])[0]
