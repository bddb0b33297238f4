"""Steps of training on several ranks to be timed, what they differ in, and how they are drawn."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab3.scaling.cases.analysis import KIND, KINDS
from grader.shared.dimensions import Dimension, Space

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator


class Call(TypedDict):
    """Arguments of `measure_scaling`."""

    world_sizes: list[int]
    kind: str
    batch_size: int
    steps: int
    device: str


@dataclass(frozen=True, kw_only=True)
class CallReply:
    """What one call of `measure_scaling` did."""

    points: list[dict[str, object]]
    """The fields of the points that it returned."""
    steps: dict[str, float]
    """How many steps rank 0's GPU made, by the number of ranks: products of the default model say it. On the CPU none.
    """
    samples: dict[str, int]
    """The samples of the last of these steps."""


@dataclass(frozen=True, kw_only=True)
class SeveralReply:
    """One reply for each call."""

    replies: list[CallReply]


@dataclass(frozen=True, kw_only=True)
class Several(ProbeInputs[SeveralReply], probe="lab3.scaling.measuring.several"):
    """Calls on a machine with two virtual GPUs, one after the other."""

    calls: list[Call]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps of training on several ranks, to be timed."""

    kind: str
    batch_size: int
    width: int
    layers: int
    steps: int
    warmup: int
    load_seconds: list[float]
    """How long a batch takes to come, on each rank."""
    first_seconds: list[list[float]]
    """The same of each rank's first batches, one by one."""
    optimizer_cycles: int
    """For how many of its cycles each step of an optimizer keeps the GPU busy, on top of its kernels."""


class MeasuredPoint(TypedDict):
    """The fields of a `ScalingPoint` that the submission made, as plain values."""

    device: object
    backend: object
    kind: object
    world_size: object
    batch_size: object
    step_seconds: object
    samples_per_second: object
    profile: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class MeasuredReply:
    """What one rank observed."""

    point: MeasuredPoint
    """As `measure_rank` returned it."""
    in_group: bool
    """Whether there was a process group afterwards."""
    taken: int
    """Batches that were taken."""
    expected: int
    """Batches that two series of steps take."""
    refused: dict[str, bool]
    """Whether arguments that make no sense raised a ValueError, by what they are."""
    failed: str
    """The error with which a loader that fails ended the call; empty if it returned."""
    in_group_after_failure: bool


@dataclass(frozen=True, kw_only=True)
class Measured(Steps, ProbeInputs[MeasuredReply], probe="lab3.scaling.measuring.measured"):
    """The steps as the submission times them."""


@dataclass(frozen=True, kw_only=True)
class TimedReply:
    """How long our own steps took on one rank."""

    batch_size: int
    """Of all ranks together."""
    step_seconds: float
    data_seconds: float
    compute_seconds: float


@dataclass(frozen=True, kw_only=True)
class Timed(Steps, ProbeInputs[TimedReply], probe="lab3.scaling.reference_run.timed"):
    """The same steps, made and timed by ourselves."""


SPACES = (
    Space(
        probes=(Measured.probe,),
        cases=lambda request: [{**request.params, "ranks": request.ranks, "slow": bool(request.conditions)}],
        dimensions=(
            Dimension("ranks", ("1", "2", "3"), lambda case: str(case["ranks"])),
            KIND,
            Dimension("a slow GPU", ("no", "yes"), lambda case: "yes" if case["slow"] else "no"),
        ),
        apart={
            ("ranks=1", "a slow GPU=no"): "a slow GPU that is alone is a GPU",
            ("ranks=3", "a slow GPU=yes"): "ranks wait for a slow one on two ranks as on three",
        },
    ),
    Space(
        probes=(Several.probe,),
        cases=lambda request: request.params["calls"],
        dimensions=(
            KIND,
            Dimension(
                "world sizes", ("one", "several"), lambda case: "one" if len(case["world_sizes"]) == 1 else "several"
            ),
        ),
        apart={("kind=strong", "world sizes=one"): "nothing is shared there"},
    ),
)
WITHOUT = {Timed.probe: "our own reference of `measured`"}


def _waits(generator: InputGenerator, count: int) -> list[float]:
    """For how long timed batches are waited for, in shares of the usual time: that is the median, one comes very late,
    one at once, and without the first one or two the median is another.
    """
    around = [ratio for step in range(1, count // 2) for ratio in (1 - 0.3 * step, 1 + 0.6 * step)]
    while True:
        ratios = generator.shuffled([0.0, 1.0, *around, 100.0])
        if all(abs(statistics.median(ratios[left_out:]) - 1) > 0.1 for left_out in (1, 2)):
            return ratios


def steps(
    generator: InputGenerator, ranks: int, kind: str, *, uneven: bool
) -> tuple[Measured, Timed, list[dict[str, object]]]:
    """A step for the submission and for ourselves to time, and the conditions of the virtual GPUs.

    The batches of the first steps, which are not to be timed, take long to come, in both series of steps; each of those
    that are timed takes a time of its own.
    """
    generator = generator.shared(f"lab3.steps.{ranks}.{kind}.{uneven}")
    width, layers, batch = 64 * generator.integer(24, 32), generator.integer(3, 5), 48 * generator.integer(4, 8)
    if kind == "weak":
        batch += 1  # nothing is shared
    load = generator.uniform(0.5e-3, 1.5e-3)
    slow, factor = generator.integer(0, ranks - 1), generator.uniform(2.0, 4.0)
    timed, warmup = 7, generator.integer(3, 4)
    loads = [load * generator.uniform(1.0, 3.0) if uneven else load for _ in range(ranks)]
    ratios = _waits(generator, timed)
    first = []
    for own in loads:
        taken: list[float] = []
        for usual in (own, 3 * own if ranks == 1 else own):  # alone, later steps take longer than whole ones before
            taken += [0.1] * warmup + [usual * ratio for ratio in ratios]
        first.append(taken)
    case = Steps(
        kind=kind,
        batch_size=batch,
        width=width,
        layers=layers,
        steps=timed,
        warmup=warmup,
        load_seconds=loads,
        first_seconds=first,
        optimizer_cycles=generator.integer(3_000_000, 5_000_000),
    )
    conditions: list[dict[str, object]] = [{"factor": factor, "name": "aten::mm", "rank": slow}] if uneven else []
    return Measured(**vars(case)), Timed(**vars(case)), conditions


def steps_made(call: Call) -> int:
    """Steps of a call: two sorts, each with two to warm up, which is the default."""
    return 2 * (2 + call["steps"])


def calls(generator: InputGenerator) -> list[Call]:
    """Both kinds of scaling, on GPUs and on the CPU. No number of steps is the default.

    Steps on the CPU compute numbers, so one process makes them.
    """
    batch, steps = 2 * generator.integer(1, 3), generator.shuffled((2, 4))[0]
    first, second = generator.shuffled(KINDS)
    sizes = [2, 1] if second == "strong" else [1]  # one process shares nothing
    return [
        {"world_sizes": [2, 1], "kind": first, "batch_size": batch, "steps": steps, "device": "cuda"},
        {"world_sizes": sizes, "kind": second, "batch_size": batch, "steps": 1, "device": "cuda"},
        {"world_sizes": [1], "kind": "weak", "batch_size": batch, "steps": 1, "device": "cpu"},
    ]
