"""The truth about one training step's memory: measured by a run of our own, in a child without the student's code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradebox.run.assertions import Cause, mebibytes, number, picturing, recognising, require_between
from gradebox.run.input_generator import InputGenerator
from gradebox.run.pictures import Picture, bars
from gradebox.run.submission import Submission
from grader.shared.cases import every_value, one_and_its_opposite

TOLERANCE = 0.03
"""Share of the step's peak: room for a library workspace that one method allocates earlier than another."""

_ROOM = {"kept": (0.2, 2.0), "forward": (0.2, 2.0), "backward": (1.0, 2.5)}
"""Bytes that the network takes beyond what shapes tell, as parts of its parameters: several times TOLERANCE wide. The
backward pass takes enough for the peak to lie above what is held before it."""

_ALIGNMENT_BYTES = 512  # the caching allocator rounds every block up to this
_UNSPLIT_BYTES = 2**20  # and does not split off less than this from a large block, which then counts as a whole


def steps(generator: InputGenerator) -> dict[str, Any]:
    """Some steps, and what others hold on the device: the same for all checks of one grading, so asked once.

    The first is in float32.
    """
    generator = generator.shared("lab1.memory")
    rows = every_value(generator, _STEPS, 3)
    rows.sort(key=lambda row: row["dtype"] is not None)
    return {
        "runs": [{name: one for name, one in _step(generator, row).items() if one} for row in rows],
        **_others(generator),
    }


def comparisons(generator: InputGenerator) -> dict[str, Any]:
    """Networks whose precisions are compared."""
    return {
        "networks": [_step(generator, row) for row in one_and_its_opposite(generator, _COMPARED)],
        **_others(generator),
    }


_COMPARED = {"network": ("deep", "wide"), "indexed": (False, True)}
_STEPS = {**_COMPARED, "dtype": (None, "float16", "bfloat16")}


def _step(generator: InputGenerator, row: Mapping[str, Any]) -> dict[str, Any]:
    """A network of which the parameters weigh most, or, where it is wide, batch and output."""
    made = network(generator) if row["network"] == "deep" else _wide(generator)
    return {**made, **{name: value for name, value in row.items() if name != "network"}}


def _others(generator: InputGenerator) -> dict[str, int]:
    return {"kept": generator.integer(20, 60) * 2**20, "freed": generator.integer(100, 300) * 2**20}


def network(generator: InputGenerator) -> dict[str, Any]:
    """A fully connected network large enough that library workspaces do not matter, of odd and random widths."""
    # Two that are alike within the tolerances are rare: bytes seen in one grading are no answer in the next.
    scale = generator.uniform(1.0, 1.5)
    widths = [generator.odd(int(1401 * scale), int(1801 * scale)) for _ in range(generator.integer(4, 6))]
    widths = [*widths, generator.odd(11, 99)]
    room = [
        round(generator.uniform(*_ROOM[part]) * parameter_bytes(widths)) for part in ("kept", "forward", "backward")
    ]
    return {"widths": widths, "batch": generator.odd(901, 2101), "room": room}


def _wide(generator: InputGenerator) -> dict[str, Any]:
    widths = [
        generator.odd(1801, 2501),
        *(generator.odd(151, 251) for _ in range(generator.integer(1, 2))),
        generator.odd(1501, 2001),
    ]
    batch = generator.odd(4001, 6001)
    room = [round(generator.uniform(0.2, 0.6) * 4 * batch * widths[0]) for _ in range(3)]
    return {"widths": widths, "batch": batch, "room": room}


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
    """What reference runs of one step held at the end of each stage."""

    what: str
    implementations: Sequence[Mapping[str, Mapping[str, int]]]
    """The stages, for each implementation of Adam."""

    def like(self, profile: Mapping[str, Any]) -> Mapping[str, Mapping[str, int]]:
        """The stages with the implementation of Adam that the student seems to use: all of them are right."""
        told = next((stage["peak_bytes"] for stage in profile["stages"] if stage["stage"] == "step"), 0)
        near = number(told, "peak_bytes of stage 'step'")
        return min(self.implementations, key=lambda stages: abs(stages["step"]["peak_bytes"] - near))

    def mistake_of(self, profile: Mapping[str, Any]) -> Cause | None:
        """Something that was let go of: the same bytes are missing of what is allocated at the end of some stages, and
        nowhere is anything too much."""
        stages = self.like(profile)
        slack = TOLERANCE * max(stage["peak_bytes"] for stage in stages.values())
        missing = []
        for stage in profile["stages"]:
            told = stage["allocated_bytes"]
            if not isinstance(told, (int, float)) or not math.isfinite(told):
                return None
            missing.append(stages[stage["stage"]]["allocated_bytes"] - told)
        short = [one for one in missing if one > slack]
        if not short or min(missing) < -slack or max(short) - min(short) > slack:
            return None
        return LET_GO

    def compare(self, profile: Mapping[str, Any], field: str, hint: str, *, share: float = TOLERANCE) -> None:
        """Fail unless `field` agrees in every stage, within a share of the step's peak."""
        stages = self.like(profile)
        slack = share * max(stage["peak_bytes"] for stage in stages.values())
        with recognising(lambda: self.mistake_of(profile)), picturing(lambda: _bars(field, profile, stages)):
            for stage in profile["stages"]:
                real = stages[stage["stage"]][field]
                require_between(
                    stage[field],
                    real - slack,
                    real + slack,
                    what=f"{field} of stage {stage['stage']!r}{self.what}",
                    show=mebibytes,
                    expected=f"{mebibytes(real)}, give or take {mebibytes(slack)}",
                    hint=_UNITS if _in_mebibytes(stage[field], real) else hint,
                )

    def compare_falls(self, profile: Mapping[str, Any], hint: str) -> None:
        """Fail unless the peak of every stage lies as far below the largest as it should, within the same TOLERANCE."""
        stages = self.like(profile)
        largest = max(stage["peak_bytes"] for stage in stages.values())
        told = max(number(stage["peak_bytes"], "peak_bytes") for stage in profile["stages"])
        slack = TOLERANCE * largest
        with recognising(lambda: self.mistake_of(profile)):
            for stage in profile["stages"]:
                real = largest - stages[stage["stage"]]["peak_bytes"]
                below = f"how far peak_bytes of stage {stage['stage']!r} lies below the largest of the step{self.what}"
                require_between(
                    told - number(stage["peak_bytes"], "peak_bytes"),
                    real - slack,
                    real + slack,
                    what=below,
                    show=mebibytes,
                    expected=f"{mebibytes(real)}, give or take {mebibytes(slack)}",
                    hint=hint,
                )


_UNITS = "the figures are in bytes"
LET_GO = Cause(
    "let_go",
    "something that a training loop keeps is gone before its stage ends: batch, output and loss have a name until "
    "then (`inputs = inputs.to(device)`; a batch that is moved within the call of the model is kept by nobody)",
    "lab1.memory.allocated_equals_truth",
)


def _bars(field: str, profile: Mapping[str, Any], stages: Mapping[str, Mapping[str, int]]) -> Picture | None:
    told = [(stage["stage"], stage[field]) for stage in profile["stages"]]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for _, value in told):
        return None
    return bars(
        f"{field} of each stage",
        "MiB",
        [(name, value / 2**20) for name, value in told],
        [(name, stages[name][field] / 2**20) for name, _ in told],
    )


def _in_mebibytes(told: Any, real: int) -> bool:
    """Whether somebody has divided."""
    return isinstance(told, (int, float)) and any(
        0.9 * real <= told * unit <= 1.1 * real for unit in (2**10, 1e6, 2**20, 2**30)
    )


def truths(submission: Submission, runs: Sequence[Mapping[str, Any]], kept: int, freed: int) -> list[Truth]:
    """Run the steps by ourselves on the same device."""
    seen = submission.probe(
        "lab1.memory_truth.memory", values=False, student=False, runs=list(runs), kept=kept, freed=freed
    )
    return [
        Truth(
            f", call {index + 1} in a process that holds {mebibytes(kept)} already" if kept else "",
            [{stage["stage"]: stage for stage in steps[index]} for steps in seen.stages],
        )
        for index in range(len(runs))
    ]
