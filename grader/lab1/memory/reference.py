"""What a training step holds at the end of each stage: measured by a run of our own, without the submission's code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grader.lab1.memory.cases import StageBytes, parameter_bytes

TOLERANCE = 0.03
"""Share of the step's peak: room for a library workspace that one method allocates earlier than another."""
_UNSPLIT_BYTES = 2**20
"""The allocator does not split off less than this from a large block, which then counts as a whole."""

Stages = Mapping[str, StageBytes]
"""By name."""


@dataclass(frozen=True)
class Reference:
    """What reference runs of one step held."""

    what: str
    """Which step it is, as the end of a message's subject."""
    implementations: Sequence[Stages]
    """The stages, for each implementation of Adam."""

    def like(self, step_peak_bytes: float) -> Stages:
        """The stages with the implementation of Adam that has about this peak in its step: all of them are right."""
        return min(self.implementations, key=lambda stages: abs(stages["step"]["peak_bytes"] - step_peak_bytes))


def references(stages: Sequence[Sequence[Sequence[StageBytes]]], kept: int, shown: str) -> list[Reference]:
    """The reference of each step.

    Args:
        stages: for each implementation of Adam and each step.
        kept: bytes that the process holds already.
        shown: these bytes in words.
    """
    return [
        Reference(
            f", call {number} in a process that holds {shown} already" if kept else "",
            [{stage["stage"]: stage for stage in step} for step in implementations],
        )
        for number, implementations in enumerate(zip(*stages, strict=True), 1)
    ]


def parameter_interval(widths: Sequence[int], bytes_per_element: int) -> tuple[int, int]:
    """The fewest and the most bytes that these parameters take on the device."""
    least = parameter_bytes(widths, bytes_per_element)
    return least, least + (len(widths) - 1) * _UNSPLIT_BYTES
