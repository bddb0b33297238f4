"""What the probes of the tensor-parallel MLP are given and return, and how their cases are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.sharding.shared.cases import Collective, RefusalsReply

if TYPE_CHECKING:  # ranks that a probe starts anew cannot import it
    from gradebox.run.input_generator import InputGenerator

_MOST, _NARROW = 128, 28
"""Hidden features at most, and others."""
HOST_WIDTH, HOST_HIDDEN = 256, 512
"""Features of layers whose copy on the host is seen above what Python takes for itself."""
_WEIGHT = 0.2
"""Of a weight, so that outputs are about 1."""
FUNCTIONS = ("copy_to_ranks", "sum_over_ranks")
KINDS = {
    "contiguous": "contiguous tensors",
    "transposed": "transposed tensors",
    "expanded": "a gradient with strides of 0",
}
"""Of what the functions are given, with the words for it."""


@dataclass(frozen=True, kw_only=True)
class FunctionRun:
    """What one rank observed of a function."""

    output: Array
    gradient: Array
    """Of its input."""
    untouched: bool
    """Whether input and gradient are what they were."""
    forward: list[Collective]
    backward: list[Collective]


@dataclass(frozen=True, kw_only=True)
class FunctionsReply:
    """What one rank observed of each function, by its name and the kind of its input: "copy_to_ranks, expanded"."""

    runs: dict[str, FunctionRun]


@dataclass(frozen=True, kw_only=True)
class CopyAndSum(ProbeInputs[FunctionsReply], probe="sharding.tensor_parallel.functions"):
    """`copy_to_ranks` and `sum_over_ranks` of each rank's part."""

    numbers: Array
    """[ranks, rows, columns]"""
    slopes: Array
    """Gradients of the outputs."""


class LayersCase(TypedDict):
    """Two layers that ranks share."""

    hidden: int
    features: int
    outputs: int
    up_bias: bool
    down_bias: bool
    activation: str
    pairs: bool
    """Whether two ranks each share them, and each pair has inputs of its own."""
    dtype: str


@dataclass(frozen=True, kw_only=True)
class LayersRun:
    """What one rank observed of a `ParallelMLP`."""

    held: int
    """Bytes."""
    elsewhere: list[int]
    """Bytes at most on each other rank's GPU."""
    copied_bytes: int
    """From the device to the host, up to the end of forward."""
    output: Array
    input_gradient: Array | None
    parts: dict[str, Array]
    """The rank's own part of each parameter that it has."""
    gradients: dict[str, Array | None]
    count: int
    """Numbers in all parameters."""
    dtypes: list[str]
    """Of the parameters."""
    untouched: bool
    """Whether the whole layers are what they were."""
    layers_kept: int
    """Of their weights and biases how many are still in memory once the caller has let go of the layers."""
    forward: list[Collective]
    backward: list[Collective]


@dataclass(frozen=True, kw_only=True)
class LayersReply:
    """What one rank observed of each case."""

    runs: list[LayersRun]
    host_bytes: int | None
    """What a `ParallelMLP` of larger layers takes of the host's memory, with the values of its GPU; None if nobody
    counts."""


@dataclass(frozen=True, kw_only=True)
class ShareLayers(ProbeInputs[LayersReply], probe="sharding.tensor_parallel.layers"):
    """A `ParallelMLP` of each case.

    The first `features` columns and `hidden` rows of `up` [hidden, in] are the first layer, and so on.
    """

    cases: list[LayersCase]
    up: Array
    down: Array
    biases: Array
    inputs: Array
    """[pairs of ranks, samples, length, features]"""
    slopes: Array


@dataclass(frozen=True, kw_only=True)
class Refuse(ProbeInputs[RefusalsReply], probe="sharding.tensor_parallel.refusals"):
    """Calls of `ParallelMLP` that make no sense."""

    hidden: int
    """Features, a multiple of the ranks."""


# --- how cases are drawn ----------------------------------------------------------------------------------------------


def copied_and_summed(generator: InputGenerator, ranks: int) -> CopyAndSum:
    """Numbers of each rank."""
    shape = generator.integer(3, 6), generator.integer(4, 7)
    return CopyAndSum(numbers=generator.normal(ranks, *shape), slopes=generator.normal(ranks, *shape))


def shared_layers(generator: InputGenerator, ranks: int) -> ShareLayers:
    """Two pairs of layers for so many ranks."""
    generator = generator.shared(f"sharding.tensor_parallel.{ranks}")
    up_bias, down_bias = generator.shuffled([True, False]), generator.shuffled([True, False])
    activations = generator.shuffled(["gelu", "relu", "silu"])
    cases: list[LayersCase] = [
        {
            "hidden": ranks * generator.integer(24, 32),  # what is whole is seen above the allocator's rounding
            "features": generator.integer(12, 20),
            "outputs": generator.integer(21, 28),
            "up_bias": up_bias[index],
            "down_bias": down_bias[index],
            "activation": activations[index],
            "pairs": ranks == 4 and index == 1,
            "dtype": ("float32", "float64")[ranks == 2 and index == 1],
        }
        for index in range(2)
    ]
    if ranks == 2:
        cases[0] = {**cases[0], "up_bias": True, "down_bias": True, "activation": "gelu"}
    length = generator.integer(2, 4)
    return ShareLayers(
        cases=cases,
        up=_WEIGHT * generator.normal(_MOST, _MOST),
        down=_WEIGHT * generator.normal(_MOST, _MOST),
        biases=generator.normal(2, _MOST),
        inputs=generator.normal(ranks // 2, 3, length, _NARROW),
        slopes=generator.normal(ranks // 2, 3, length, _NARROW),
    )
