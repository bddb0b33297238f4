"""What the probes of the exercise's predictions are given and return, and how their cases are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Required, TypedDict

from gradebox.sandbox.probe_types import ProbeInputs

if TYPE_CHECKING:  # ranks that a probe starts anew cannot import it
    from gradebox.run.input_generator import InputGenerator

STAGES = (0, 1, 2, 3)
_PAPER = {"parameters": 7_500_000_000, "ranks": 64}
"""Table 1 of arXiv:1910.02054: 120, 31.4, 16.6 and 1.9 GB."""
_WRONG: tuple[dict[str, int], ...] = ({"parameters": 0}, {"ranks": 0}, {"stage": 4}, {"stage": -1})


class MemoryCall(TypedDict, total=False):
    """Arguments of one call of `memory_per_rank`, which is given those that are there."""

    parameters: Required[int]
    ranks: Required[int]
    stage: Required[int]
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


class LargestCall(TypedDict):
    """Arguments of one call of `largest_model`."""

    memory_bytes: float
    ranks: int
    stage: int


class SentCall(TypedDict, total=False):
    """Arguments of one call of `sent_per_rank`, which is given those that are there."""

    parameters: Required[int]
    ranks: Required[int]
    stage: Required[int]
    element_bytes: int


class RefusedCall(TypedDict):
    """A call that makes no sense."""

    name: str
    arguments: Mapping[str, float]


class Held(TypedDict):
    """A `ShardedMemory` that a submission returned: each field may be anything that JSON can say."""

    parameter_bytes: object
    gradient_bytes: object
    optimizer_bytes: object
    total_bytes: object


@dataclass(frozen=True, kw_only=True)
class PredictionsReply:
    """What each call returned: anything that JSON can say."""

    memory: list[Held]
    largest: list[object]
    sent: list[object]
    errors: list[str]
    """How each call ended that must be refused."""


@dataclass(frozen=True, kw_only=True)
class Predict(ProbeInputs[PredictionsReply], probe="sharding.analysis.predicted"):
    """Calls of the functions that predict; each of the first three is called only if there are cases."""

    memory: list[MemoryCall]
    largest: list[LargestCall]
    sent: list[SentCall]
    refused: list[RefusedCall]


Times = list[list[float]]
"""Starts and ends."""


class Intervals(TypedDict):
    """When messages were under way, and when something was computed."""

    communication: Times
    computation: Times


@dataclass(frozen=True, kw_only=True)
class SharesReply:
    """What each call returned: anything that JSON can say."""

    shares: list[object]
    errors: list[str]
    """How each call ended that must be refused."""


@dataclass(frozen=True, kw_only=True)
class HideMessages(ProbeInputs[SharesReply], probe="sharding.analysis.overlap"):
    """Calls of `hidden_share`, and calls that make no sense."""

    cases: list[Intervals]
    refused: list[Intervals]


@dataclass(frozen=True, kw_only=True)
class ProgramReply:
    """What the program wrote and drew."""

    exit_code: object
    json: dict[str, str]
    """The texts of results files, by name."""
    pictures: dict[str, dict[str, float]]
    """Of each PNG file: `width`, `height`, `colours`, and `ground`, the share of its commonest colour."""
    drawn: list[int]
    """Points of data in each figure that was written."""
    words: list[list[str]]
    """All that is written in each figure."""


@dataclass(frozen=True, kw_only=True)
class RunProgram(ProbeInputs[ProgramReply], probe="sharding.analysis.program"):
    """The program, on virtual GPUs that it opens itself."""

    command: list[str]
    """Its arguments."""


# --- how cases are drawn ----------------------------------------------------------------------------------------------


def memory_calls(generator: InputGenerator) -> Predict:
    """Calls of `memory_per_rank` and `largest_model`."""
    count = generator.integer(10**6, 10**9)
    gradient, states = generator.integer(5, 7), generator.integer(8, 11)
    memory: list[MemoryCall] = [
        {"parameters": _PAPER["parameters"], "ranks": _PAPER["ranks"], "stage": stage} for stage in STAGES
    ]
    memory += [
        {
            "parameters": count,
            "ranks": generator.odd(3, 99),
            "stage": stage,
            "parameter_bytes": 4,
            "gradient_bytes": gradient,
            "optimizer_bytes": states,
        }
        for stage in STAGES
    ]
    memory.append({"parameters": count, "ranks": 1, "stage": generator.integer(1, 3)})
    largest: list[LargestCall] = [{"memory_bytes": 32e9, "ranks": 64, "stage": stage} for stage in STAGES]
    largest.append({"memory_bytes": generator.uniform(1e9, 9e10), "ranks": generator.odd(3, 99), "stage": 2})
    refused: list[RefusedCall] = [
        *_refused("memory_per_rank", count),
        {"name": "largest_model", "arguments": {"memory_bytes": 1.0, "ranks": 1, "stage": 0}},
        {"name": "largest_model", "arguments": {"memory_bytes": 1e9, "ranks": 1, "stage": 4}},
    ]
    return Predict(memory=memory, largest=largest, sent=[], refused=refused)


def sent_calls(generator: InputGenerator) -> Predict:
    """Calls of `sent_per_rank`."""
    count, size = generator.integer(10**6, 10**9), generator.integer(3, 8)
    sent: list[SentCall] = [
        {"parameters": count, "ranks": generator.odd(3, 99), "stage": stage, "element_bytes": size} for stage in STAGES
    ]
    sent.append({"parameters": count, "ranks": 2, "stage": generator.integer(0, 3)})
    sent += [{"parameters": count, "ranks": 1, "stage": stage} for stage in (0, 3)]
    return Predict(memory=[], largest=[], sent=sent, refused=_refused("sent_per_rank", count))


def _refused(name: str, count: int) -> list[RefusedCall]:
    right = {"parameters": count, "ranks": 4, "stage": 1}
    return [{"name": name, "arguments": {**right, **wrong}} for wrong in _WRONG]


def hidden_messages(generator: InputGenerator) -> HideMessages:
    """Messages and work that overlap in every way."""
    unit = generator.integer(2, 9) / 4

    def times(*pairs: tuple[float, float]) -> Times:
        return [[start * unit, end * unit] for start, end in generator.shuffled(list(pairs))]

    cases: list[Intervals] = [
        {"communication": times((0, 4), (6, 8)), "computation": times((1, 2), (3, 7))},
        # Overlapping messages, overlapping work: a moment counts once.
        {"communication": times((0, 4), (2, 6)), "computation": times((1, 3), (2, 3), (5, 9))},
        # One within another, with a long one first.
        {"communication": times((0, 10), (1, 2), (4, 12)), "computation": times((9, 12))},
        {"communication": times((3, 4), (1, 2)), "computation": times((0, 9), (1, 2))},
        {"communication": times((1, 2)), "computation": []},
        {"communication": times((1, 2)), "computation": times((2, 3), (0, 1))},
        {"communication": [], "computation": times((0, 1))},
        {"communication": times((1, 1)), "computation": times((0, 3))},
    ]
    refused: list[Intervals] = [
        {"communication": times((2, 1)), "computation": times((0, 1))},
        {"communication": times((0, 1)), "computation": times((0, 3), (4, 2))},
    ]
    return HideMessages(cases=cases, refused=refused)
