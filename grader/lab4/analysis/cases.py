"""Inputs of Lab 4's prediction of memory, and what its probes return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab4.shared.cases import SEGMENTS, Fields, segments
from grader.shared.dimensions import Dimension, Space

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator

Part: TypeAlias = Literal["parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes"]
PARTS: tuple[Part, ...] = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes")
"""What the memory of a training step is for."""


class Setup(TypedDict):
    """The fields of a `labkit.results.TrainingSetup`."""

    model: str
    layers: int
    width: int
    heads: int
    tokens: int
    optimizer: str
    dtype: str
    checkpoint_every: int | None


class StepBytes(TypedDict):
    """What a step holds, by what it is for."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    activation_bytes: int


class Result(TypedDict):
    """The fields of a made-up `labkit.results.MemoryComparison`."""

    setup: Setup
    predicted: StepBytes
    measured: StepBytes


@dataclass(frozen=True, kw_only=True)
class PredictionsReply:
    """The fields of each prediction, and the work in products that the predictions did."""

    predictions: list[Fields]
    flops: float
    host_flops: int
    """Those on the CPU, by PyTorch's dispatcher."""


@dataclass(frozen=True, kw_only=True)
class Predictions(ProbeInputs[PredictionsReply], probe="lab4.analysis.predictions"):
    """Let the submission predict the memory of each setup."""

    setups: list[Setup]


@dataclass(frozen=True, kw_only=True)
class StepsReply:
    """What a step of each setup holds."""

    steps: list[StepBytes]


@dataclass(frozen=True, kw_only=True)
class Steps(ProbeInputs[StepsReply], probe="lab4.analysis.steps"):
    """Run a step of the course's own models for each setup, in a reference run."""

    setups: list[Setup]


def setups_of(generator: InputGenerator) -> list[Setup]:
    """Training steps nobody has tried, one for each thing there is to predict; the same for all checks of a grading."""
    generator = generator.shared("lab4.setups")

    def mlp(optimizer: str, dtype: str) -> Setup:
        return {
            "model": "mlp",
            "layers": generator.integer(3, 6),
            "width": 8 * generator.odd(61, 121),
            "heads": 1,
            "tokens": generator.odd(701, 1501),
            "optimizer": optimizer,
            "dtype": dtype,
            "checkpoint_every": None,
        }

    def transformer(optimizer: str, dtype: str, every: int | None) -> Setup:
        heads = generator.integer(5, 9)
        return {
            "model": "transformer",
            "layers": generator.integer(3, 5),
            "width": 64 * heads,
            "heads": heads,
            "tokens": generator.odd(1101, 1901),
            "optimizer": optimizer,
            "dtype": dtype,
            "checkpoint_every": every,
        }

    low, other = generator.shuffled(["float16", "bfloat16"])
    first, second, third = generator.shuffled(["sgd", "momentum", "adam"])
    setups = [
        mlp(first, "float32"),
        mlp(second, low),
        transformer(third, "float32", None),
        transformer(first, other, None),
    ]
    # Every block, some of them with a short last segment or with equal ones, and all of them in one.
    odd, length = generator.shuffled([5, 7])[0], generator.integer(2, 3)
    cut = [
        (odd, 1),
        (odd, generator.integer(2, 3)),
        (length * generator.integer(2, 3), length),
        (odd, odd + generator.integer(0, 3)),
    ]
    for optimizer, dtype, (layers, every) in zip(
        [*generator.shuffled(["sgd", "momentum", "adam"]), generator.shuffled(["sgd", "momentum", "adam"])[0]],
        ["float32", *generator.shuffled(["float32", low, other])],
        generator.shuffled(cut),
        strict=True,
    ):
        setup = transformer(optimizer, dtype, every)
        setups.append({**setup, "layers": layers})
    return setups


def made_up_results(generator: InputGenerator) -> list[Result]:
    """Results for the plot whose parts are so different in size that the length of a bar shows which part it is."""
    sizes = [size * 2**20 + generator.integer(0, 2**20) for size in generator.shuffled(range(20, 900, 8))]
    return [
        {
            "setup": {
                "model": "transformer",
                "layers": 4,
                "width": 512,
                "heads": 8,
                "tokens": 4096,
                "optimizer": optimizer,
                "dtype": "float32",
                "checkpoint_every": None,
            },
            "predicted": _parts(sizes, without_state=optimizer == "sgd"),
            "measured": _parts(sizes, without_state=optimizer == "sgd"),
        }
        for optimizer in generator.shuffled(["adam", "momentum", "sgd"])
    ]


def _parts(sizes: list[int], *, without_state: bool) -> StepBytes:
    parameters, gradients, state, activations = (sizes.pop() for _ in PARTS)
    return {
        "parameter_bytes": parameters,
        "gradient_bytes": gradients,
        "optimizer_state_bytes": 0 if without_state else state,
        "activation_bytes": activations,
    }


SPACES = (
    Space(
        probes=(Predictions.probe,),
        cases=lambda request: request.params["setups"],
        dimensions=(
            Dimension("model", ("mlp", "transformer"), lambda case: str(case["model"])),
            Dimension("optimizer", ("sgd", "momentum", "adam"), lambda case: str(case["optimizer"])),
            Dimension("dtype", ("float32", "float16", "bfloat16"), lambda case: str(case["dtype"])),
            Dimension("checkpointing", SEGMENTS, lambda case: segments(case["checkpoint_every"], case["layers"])),
        ),
        apart={("model=mlp", f"checkpointing={how}"): "an mlp with checkpointing is refused" for how in SEGMENTS[1:]},
    ),
)
WITHOUT = {Steps.probe: "our own measurement of what is predicted"}
