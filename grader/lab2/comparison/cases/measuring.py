"""Inputs of `compare_precisions` and `measure_accuracies`: a network, and how it is measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from gradebox.sandbox.devices import Device
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.shared.cases import DIGITS, PRECISIONS
from grader.shared.dimensions import Case, Dimension, Space


class PrecisionRow(TypedDict):
    """A `PrecisionResult` that a submission returned: each field may be anything that JSON can say."""

    device: object
    dtype: object
    step_seconds: object
    samples_per_second: object
    peak_bytes: object
    accuracy: object


# --- compare_precisions -----------------------------------------------------------------------------------------------


class OptimizerSettings(TypedDict):
    """What an optimizer is, and its defaults."""

    kind: str
    lr: object
    betas: object
    eps: object
    weight_decay: object


@dataclass(kw_only=True)
class ComparedModel:
    """What was observed of one model that `compare_precisions` made."""

    forwards: int = 0
    steps: int = 0
    """Of an optimizer, after a forward pass of this model and before one of another."""
    updates: int = 0
    """Of a loss scale."""
    optimizers: list[OptimizerSettings] = field(default_factory=list)
    modes: list[bool] = field(default_factory=list)
    """Whether it was in training mode: each that it ran in."""
    losses: list[str] = field(default_factory=list)
    """On a virtual GPU, dtypes in which a logarithm of softmax was computed."""


@dataclass(frozen=True, kw_only=True)
class CompareReply:
    """The rows, what was run for them, and what the course's own steps took."""

    rows: list[PrecisionRow]
    models: list[ComparedModel]
    reference_seconds: dict[str, list[float]]
    """By precision, quartiles of the seconds of the course's steps right before the call and right after it."""
    product_flops: int | None = None
    """Of all matrix products, on a virtual GPU."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How precisions are measured in one place."""

    accuracies: list[tuple[str, float]]
    """Precisions and their accuracies, in the order in which they are handed in."""
    steps: int
    warmup: int


@dataclass(frozen=True, kw_only=True)
class Network:
    """A fully connected network and its batch."""

    widths: list[int]
    batch: int


@dataclass(frozen=True, kw_only=True)
class Compare(ProbeInputs[CompareReply], probe="lab2.comparison.measuring.compare"):
    """A call of `compare_precisions`."""

    network: Network
    plan: Plan
    reference_steps: int = 0
    """So many steps of the course's own in each precision, before the call and after it: a card's clock changes."""


@dataclass(frozen=True, kw_only=True)
class ReferenceRow:
    """What a step costs in one precision."""

    step_seconds: float
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class CompareReferenceReply:
    """By precision."""

    rows: dict[str, ReferenceRow]


@dataclass(frozen=True, kw_only=True)
class CompareReference(ProbeInputs[CompareReferenceReply], probe="lab2.comparison.measuring.compare_reference"):
    """The same steps, measured by the course."""

    network: Network
    precisions: list[str]
    steps: int


STEPS = (5, 6)
"""Of which three may be disturbed: a slow one, a fast one, and the first one where nothing has warmed up."""
SLOW = "slow"
ACCURACIES = {"bfloat16": 0.91, "float32": 0.93, "float16": 0.92}
"""Made up, and handed in."""
_REAL_SHARES = (4.0, 2.0, 1.0, 0.5, 0.25)
"""Times the samples of a batch, on a real card: a fast one gets more, so that steps are long against its jitter."""
_REAL_STEP_SECONDS = 0.1
"""At most, if a share allows it, in the slowest precision: a probe makes 80 steps, and has a minute."""
_REAL_MEMORY = 0.4
"""Of what is free of the card's memory."""


def network(generator: InputGenerator) -> Network:
    """A fully connected network whose products keep any GPU busy for long against a launch."""
    generator = generator.shared("lab2.comparison")
    widths = [64 * generator.integer(16, 24) for _ in range(4)]
    return Network(widths=[*widths, generator.odd(11, 99)], batch=128 * generator.integer(96, 128))


def on_card(case: Network, flops: float, free_bytes: float) -> Network:
    """The network with as many samples as suit a real card: by its FLOP/s in the slowest precision, and its memory."""
    work = sum(6.0 * case.batch * a * b for a, b in itertools.pairwise(case.widths))
    held = 4.0 * case.batch * 2 * sum(case.widths)
    most = min(_REAL_STEP_SECONDS * flops / work, _REAL_MEMORY * free_bytes / held)
    share = next((share for share in _REAL_SHARES if share <= most), _REAL_SHARES[-1])
    return replace(case, batch=round(case.batch * share))


def devices(device: Device) -> list[str]:
    """The GPUs to measure on: one without and one with fast bfloat16 if they are virtual."""
    return list(dict.fromkeys([device.name, "vgpu:T4", "vgpu:H100"])) if device.simulated else [device.name]


def plans(device: Device, generator: InputGenerator) -> dict[str, Plan]:
    """For each GPU, and for the measurement with a slow step: the precisions in an order, and how many steps."""
    generator = generator.shared("lab2.comparison.plans")
    places = [*devices(device), SLOW]
    more = len(places) - 2
    steps = generator.shuffled([*STEPS, *(generator.integer(*STEPS) for _ in range(more))])
    warmups = generator.shuffled([0, generator.integer(1, 3), *(generator.integer(0, 2) for _ in range(more))])
    first, drawn = generator.shuffled(PRECISIONS), {}
    for index, place in enumerate(places):
        begin = first[index % len(first)]
        order = [begin, *generator.shuffled([name for name in PRECISIONS if name != begin])]
        accuracies = [(name, ACCURACIES[name]) for name in order]
        drawn[place] = Plan(accuracies=accuracies, steps=steps[index], warmup=warmups[index])
    return drawn


def slow_and_fast_steps(case: Network, plan: Plan) -> list[dict[str, float]]:
    """Conditions of the virtual GPU: one product of a timed step takes 200 times as long, and all of the next step's
    take a twentieth."""
    widest = zip(case.widths[:3], case.widths[1:4], strict=True)
    flops = min(2.0 * case.batch * before * after for before, after in widest)
    products = 3 * 3 - 1  # per wide layer one forward and two backward, but the inputs need no gradient
    skip = products * (plan.warmup + plan.steps // 2)
    return [
        {"factor": 200.0, "skip": skip, "count": 1, "min_flops": 0.99 * flops},
        {"factor": 0.05, "skip": skip + products, "count": products, "min_flops": 0.99 * flops},
    ]


def _compared(request: Request) -> Iterator[Case]:
    yield {**request.params["plan"], "gpu": request.device, "slow": bool(request.conditions)}


COMPARED = Space(
    probes=(Compare.probe,),
    cases=_compared,
    dimensions=(
        Dimension("GPU", ("T4", "H100"), lambda case: case["gpu"].partition(":")[2]),
        Dimension("first precision", PRECISIONS, lambda case: case["accuracies"][0][0]),
        Dimension("steps", ("odd", "even"), lambda case: "odd" if case["steps"] % 2 else "even"),
        Dimension("warmup", ("none", "some"), lambda case: "some" if case["warmup"] else "none"),
        Dimension("a slow step", ("no", "yes"), lambda case: "yes" if case["slow"] else "no"),
    ),
    apart={("GPU=H100", "a slow step=yes"): "a median is a median on any GPU"},
)


# --- measure_accuracies -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """What was observed of one model that `measure_accuracies` made."""

    training: list[str]
    """Dtypes of its outputs in training mode."""
    evaluation: list[str]
    batches: int
    """How often it ran in training mode."""


@dataclass(frozen=True, kw_only=True)
class AccuraciesReply:
    """What `measure_accuracies` returned, and the models that it made."""

    accuracies: dict[str, object]
    models: list[TrainedModel]
    product_flops: int
    """Of all matrix products."""


@dataclass(frozen=True, kw_only=True)
class ReferenceAccuracies:
    """Shares of the images that the course's model gets right."""

    test: float
    train: float


@dataclass(frozen=True, kw_only=True)
class AccuraciesReference(ProbeInputs[ReferenceAccuracies], probe="lab2.comparison.accuracies.accuracies_reference"):
    """The course's own training in float32 on the handwritten digits."""

    first: Array
    """Weights of the classifier's first layer."""
    second: Array
    order: Array
    """Of the training images."""
    wrong: Array
    """By how much the label of each test image is shifted."""
    epochs: int


@dataclass(frozen=True, kw_only=True)
class Accuracies(ProbeInputs[AccuraciesReply], probe="lab2.comparison.accuracies.accuracies"):
    """A call of `measure_accuracies`, from the same weights."""

    first: Array
    second: Array
    order: Array
    wrong: Array
    epochs: int
    precisions: list[str]


def accuracies(generator: InputGenerator) -> tuple[Accuracies, AccuraciesReference, float]:
    """The training of this grading, by the submission and by the course, and the share of labels that are wrong."""
    hidden, share = generator.odd(61, 83), generator.uniform(0.25, 0.5)
    precisions = generator.shuffled(["bfloat16", "float32"])
    training = AccuraciesReference(
        first=generator.normal(hidden, 64) / np.float32(8),
        second=generator.normal(10, hidden) / np.float32(8),
        order=np.array(generator.shuffled(list(range(DIGITS)))),
        wrong=np.array([int(generator.uniform(0, 1) < share) for _ in range(359)]),
        epochs=3,
    )
    return Accuracies(**training.fields_by_name(), precisions=precisions), training, share


# --- the device that is given -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ComparedOnCpuReply:
    """On which devices the models ran, and the rows."""

    ran: list[str]
    rows: list[PrecisionRow]


@dataclass(frozen=True)
class ComparedOnCpu(ProbeInputs[ComparedOnCpuReply], probe="lab2.comparison.measuring.compared_on_cpu"):
    """`compare_precisions(..., device="cpu")` next to a GPU."""


@dataclass(frozen=True)
class AccuraciesOnCpuReply:
    """On which devices the models ran."""

    ran: list[str]


@dataclass(frozen=True)
class AccuraciesOnCpu(ProbeInputs[AccuraciesOnCpuReply], probe="lab2.comparison.measuring.accuracies_on_cpu"):
    """`measure_accuracies(..., device="cpu")` next to a GPU."""


# --- refusals ---------------------------------------------------------------------------------------------------------


class CompareArguments(TypedDict, total=False):
    """Arguments of `compare_precisions`: those that are there."""

    precisions: list[str]
    steps: int
    warmup: int


@dataclass(frozen=True)
class RefusedReply:
    """Whether each call raised a ValueError."""

    compared: list[bool]
    concluded: list[bool]


@dataclass(frozen=True, kw_only=True)
class Refused(ProbeInputs[RefusedReply], probe="lab2.comparison.measuring.refused"):
    """Calls of `compare_precisions`, and of `conclude` with results of these precisions. The last ones make sense."""

    compared: list[CompareArguments]
    concluded: list[list[str]]


def _refused(request: Request) -> Iterator[Case]:
    for call in request.params["compared"][:-1]:
        if "steps" in call or "warmup" in call:
            argument = "steps" if "steps" in call else "warmup"
            yield {"argument": argument, "value": "0" if call[argument] == 0 else "negative"}


REFUSED = Space(
    probes=(Refused.probe,),
    cases=_refused,
    dimensions=(
        Dimension("argument", ("steps", "warmup"), lambda case: str(case["argument"])),
        Dimension("value", ("0", "negative"), lambda case: str(case["value"])),
    ),
    apart={("argument=warmup", "value=0"): "no warm-up is allowed"},
)


def refused(generator: InputGenerator) -> Refused:
    """Arguments that make no sense, and last some that do: who refuses everything has looked at nothing."""
    compared: list[CompareArguments] = [
        {"precisions": ["float32", generator.shuffled(["float64", "float8", "int8"])[0]]},
        {"precisions": ["float32"], "steps": 0},
        {"precisions": ["float32"], "steps": -generator.integer(1, 2)},
        {"precisions": ["float32"], "warmup": -generator.integer(1, 3)},
        {"precisions": ["float32"], "steps": 1, "warmup": 0},
    ]
    twice = generator.shuffled(PRECISIONS[1:])[0]
    concluded = [
        ["float16", "bfloat16"],
        [],
        [*PRECISIONS, twice],
        generator.shuffled(["float32", "float32", twice]),
        [*PRECISIONS],
    ]
    return Refused(compared=compared, concluded=concluded)


SPACES = (COMPARED, REFUSED)
WITHOUT = {
    Accuracies.probe: "the same of measure_accuracies(); the order of precisions is drawn",
    AccuraciesReference.probe: "our own training, without the submission",
    CompareReference.probe: "our own measurement, without the submission",
}
