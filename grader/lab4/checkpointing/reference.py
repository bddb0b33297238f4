"""What checkpointing keeps, and which interval is the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from grader.lab4.checkpointing.cases.types import Choice, Measurement

KeptMistake: TypeAlias = Literal[
    "nothing_checkpointed",
    "only_with_input_gradient",
    "interval_ignored",
    "interval_taken_for_segments",
    "one_block_per_interval",
    "only_the_first_segment",
]
KEPT_MISTAKES: tuple[KeptMistake, ...] = get_args(KeptMistake)
"""What may be wrong with the segments: it shows in the bytes that a forward pass keeps."""
ChoiceMistake: TypeAlias = Literal[
    "budget_ignored", "smallest_peak", "never_without", "ties_as_they_come", "full_budget_refused"
]
CHOICE_MISTAKES: tuple[ChoiceMistake, ...] = get_args(ChoiceMistake)
"""What may be wrong with the choice of an interval."""


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
    computed_again: float
    """The share of a forward pass that backward then computes again."""


def kept_bytes(layers: int, interval: int, unit: float, plain: float) -> Kept:
    """What is kept of so many layers; `unit` bytes are one tensor, `plain` bytes all that is kept otherwise."""
    segments, last = -(-layers // interval), (layers - 1) % interval + 1
    return Kept(segments, segments * unit, (segments - 1) * unit + last * plain / layers, 1 - last / layers)


def kept_with(
    mistake: KeptMistake, layers: int, interval: int, unit: float, plain: float, *, input_gradient: bool
) -> float:
    """What is kept with a mistake."""
    right = kept_bytes(layers, interval, unit, plain)
    block = plain / layers
    match mistake:
        case "nothing_checkpointed":
            return plain
        case "only_with_input_gradient":
            return right.every_segment if input_gradient else plain
        case "interval_ignored":
            return layers * unit
        case "interval_taken_for_segments":
            return kept_bytes(layers, -(-layers // interval), unit, plain).every_segment
        case "one_block_per_interval":
            return right.segments * unit + (layers - right.segments) * block
        case "only_the_first_segment":
            return unit + max(0, layers - interval) * block


def chosen_with(mistake: ChoiceMistake, choice: Choice) -> Measurement | None:
    """The measurement that is chosen with a mistake; None if none fits."""
    rows = choice.rows if mistake == "budget_ignored" else choice.fitting
    if mistake == "full_budget_refused":
        rows = [row for row in rows if row[2] < choice.budget]
    if mistake == "never_without":
        rows = [row for row in rows if row[0] is not None]
    if mistake == "smallest_peak":
        return min(rows, key=lambda row: row[2], default=None)
    if mistake == "ties_as_they_come":
        return min(rows, key=lambda row: row[1], default=None)
    return min(rows, key=lambda row: row[1:], default=None)


def best_interval(choice: Choice) -> int | None:
    """The interval of the fastest measurement within the budget, then of the smallest; there must be one."""
    return min(choice.fitting, key=lambda row: row[1:])[0]
