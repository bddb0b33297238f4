"""What the probes of the model under FSDP2 are given and return, and how their cases are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.sharding.shared.cases import Collective, RefusalsReply
from grader.shared.readings import ProductCount

if TYPE_CHECKING:  # ranks that a probe starts anew cannot import it
    from gradebox.run.input_generator import InputGenerator

FEATURES, STEPS, BATCH = 16, 2, 8
CHANGED = 2.0
"""What a gathered state is multiplied by before it is loaded."""


class TrainCase(TypedDict):
    """A training of a network, and how it is sharded."""

    width: int
    blocks: int
    seed: int
    """Of its weights."""
    optimizer: str
    lr: float
    steps: int
    max_norm: float | None
    """To which gradients are clipped."""
    compute_dtype: str | None
    """In which blocks compute."""
    reshard: bool
    """Whether blocks are let go after forward."""
    prefetch: int
    """Blocks that are gathered ahead."""


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """What one rank observed of a training."""

    losses: list[float | str]
    """A number that is not finite as a text."""
    gradients: int
    """Parameters that have one after a step."""
    products: list[ProductCount]
    """Of the last step."""
    output_dtype: str
    weights: Array
    weight_dtypes: list[str]
    held: int
    """Bytes after a step."""
    shard_peak: int
    """Bytes at most while the model was sharded."""
    step_peak: int
    """Bytes at most in a step, more than between steps."""
    elsewhere: list[int]
    """Bytes at most on each other rank's GPU."""
    copied_bytes: int
    """From the device to the host, in all steps."""
    collectives: list[Collective]
    """Of the last step."""
    turns: list[str]
    """Its collectives by name, and its products as "product", in the order of their launch."""


@dataclass(frozen=True, kw_only=True)
class TrainReply:
    """What one rank observed of each training."""

    runs: list[TrainedRun]


@dataclass(frozen=True, kw_only=True)
class Train(ProbeInputs[TrainReply], probe="sharding.fsdp.model.train"):
    """Trainings of sharded networks."""

    cases: list[TrainCase]
    inputs: Array
    """[steps, samples, features]"""
    targets: Array


@dataclass(frozen=True, kw_only=True)
class OneGpuRun:
    """What one GPU makes of a training."""

    losses: list[float]
    weights: Array


@dataclass(frozen=True, kw_only=True)
class OneGpuReply:
    """What one GPU makes of each training."""

    runs: list[OneGpuRun]


@dataclass(frozen=True, kw_only=True)
class TrainOnOneGpu(ProbeInputs[OneGpuReply], probe="sharding.fsdp.one_gpu.train"):
    """The same trainings on one GPU that has all samples and all parameters, in float32, without a submission."""

    cases: list[TrainCase]
    inputs: Array
    targets: Array


@dataclass(frozen=True, kw_only=True)
class StatesReply:
    """What one rank gathered, and what became of a model that it was loaded into."""

    weights: Array
    """Of the model whose state is gathered."""
    names: list[str]
    kinds: list[str]
    """"Tensor" or "DTensor"."""
    places: list[str]
    """The types of the devices where the tensors are."""
    state: dict[str, Array]
    untouched: bool
    """Whether the state is what it was after it has been loaded."""
    loaded: Array
    """The other model's weights."""
    factors: Array
    """Its buffer."""
    sharded: bool
    """Whether its parameters are sharded still."""
    local: int
    """Numbers of its parameters on this rank."""


@dataclass(frozen=True, kw_only=True)
class GatherAndLoad(ProbeInputs[StatesReply], probe="sharding.fsdp.model.states"):
    """`gather_state` after a step, and `load_state` into a network of other weights."""

    case: TrainCase
    other_seed: int
    inputs: Array
    targets: Array


@dataclass(frozen=True, kw_only=True)
class WholeStateReply:
    """The state of the whole network."""

    names: list[str]
    shapes: dict[str, list[int]]
    factors: Array
    """Its buffer."""


@dataclass(frozen=True, kw_only=True)
class WholeState(ProbeInputs[WholeStateReply], probe="sharding.fsdp.one_gpu.state"):
    """A network, without a submission."""

    seed: int
    features: int
    width: int
    blocks: int


@dataclass(frozen=True, kw_only=True)
class Refuse(ProbeInputs[RefusalsReply], probe="sharding.fsdp.model.refusals"):
    """Calls of `shard` that make no sense, of networks of this width."""

    width: int


# --- how cases are drawn ----------------------------------------------------------------------------------------------


def _case(generator: InputGenerator, *, width: int = 64, blocks: int = 8) -> TrainCase:
    return {
        "width": width,
        "blocks": blocks,
        "seed": generator.integer(1, 1000),
        "optimizer": "AdamW",
        "lr": generator.uniform(0.005, 0.02),
        "steps": STEPS,
        "max_norm": None,
        "compute_dtype": None,
        "reshard": True,
        "prefetch": 0,
    }


def training(generator: InputGenerator) -> Train:
    """Two trainings for two ranks, of which each has the other value of every option."""
    generator = generator.shared("sharding.fsdp.trained")
    inputs, targets = generator.normal(STEPS, BATCH, FEATURES), generator.normal(STEPS, BATCH, FEATURES)
    norm = generator.uniform(0.5, 2.0)
    first: TrainCase = {**_case(generator), "max_norm": norm}
    blocks = generator.integer(4, 5)
    second: TrainCase = {**_case(generator, blocks=blocks), "optimizer": "SGD", "reshard": False, "prefetch": 2}
    return Train(cases=[first, second], inputs=inputs, targets=targets)


def small_training(generator: InputGenerator) -> Train:
    """A small one for four ranks, whose blocks they cannot share evenly."""
    inputs, targets = generator.normal(STEPS, BATCH, FEATURES), generator.normal(STEPS, BATCH, FEATURES)
    width, norm = generator.odd(9, 15), generator.uniform(0.5, 2.0)
    return Train(cases=[{**_case(generator, width=width, blocks=1), "max_norm": norm}], inputs=inputs, targets=targets)


def mixed_training(generator: InputGenerator) -> Train:
    """One whose blocks compute in 16 bits, and are let go, but gathered ahead."""
    generator = generator.shared("sharding.fsdp.mixed")
    prefetch, blocks = generator.shuffled([1, 3]), 4
    case: TrainCase = {**_case(generator, blocks=blocks), "compute_dtype": "bfloat16", "prefetch": prefetch[0]}
    return Train(
        cases=[case], inputs=generator.normal(STEPS, BATCH, FEATURES), targets=generator.normal(STEPS, BATCH, FEATURES)
    )


def on_one_gpu(inputs: Train) -> TrainOnOneGpu:
    """The same trainings without sharding."""
    return TrainOnOneGpu(cases=inputs.cases, inputs=inputs.inputs, targets=inputs.targets)


def gathered(generator: InputGenerator) -> GatherAndLoad:
    """A network whose state is gathered, and other weights into which it is loaded."""
    case, seed = _case(generator, blocks=2), generator.integer(1001, 2000)
    inputs, targets = generator.normal(STEPS, BATCH, FEATURES), generator.normal(STEPS, BATCH, FEATURES)
    return GatherAndLoad(case=case, other_seed=seed, inputs=inputs, targets=targets)


def whole_state(case: TrainCase) -> WholeState:
    """The network of a case."""
    return WholeState(seed=case["seed"], features=FEATURES, width=case["width"], blocks=case["blocks"])
