"""What the probes of Lab 4's checkpointing are given, and what they return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab4.shared.cases import Fields


@dataclass(frozen=True, kw_only=True)
class Model:
    """A transformer, and the input that goes through it."""

    layers: int
    width: int
    heads: int
    dropout: float
    options: tuple[str, ...]
    """The arguments that are given next to the number of layers; the others keep their defaults."""
    batch: int
    length: int
    seed: int
    nudge: float = 0.0
    """What is added to each parameter, and to an input that requires a gradient, when it is trained."""


@dataclass(frozen=True)
class Way:
    """One way to run a model."""

    interval: int | None
    input_gradient: bool
    """Whether the input requires a gradient."""
    passes: int = 1
    """Forward passes before one backward pass of all of them."""


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """What a model gave in training."""

    output: Array
    input_changed: bool
    """Whether an input that the model was given requires a gradient afterwards, or does no longer."""
    names: list[str]
    """Of the parameters."""
    missing: int
    """Parameters without a gradient."""
    gradients: Array
    """Of all parameters, one after the other."""
    input_gradient: Array
    after: Array
    """Random numbers drawn at the end: three on the device, three on the CPU."""
    held_bytes: int | None
    """What the forward passes left allocated; None of a real device, as for the next one."""
    copied_bytes: int | None
    """From the device to the host on the way."""
    backward_flops: float
    """Of the products of backward; forward passes that it repeats count."""


@dataclass(frozen=True, kw_only=True)
class EquivalenceReply:
    """One run for each way."""

    runs: list[TrainedRun]


@dataclass(frozen=True, kw_only=True)
class Equivalence(ProbeInputs[EquivalenceReply], probe="lab4.checkpointing.equivalence"):
    """Train in float64, without a student the plain chain of blocks."""

    case: Model
    ways: list[Way]


@dataclass(frozen=True, kw_only=True)
class EvaluatedRun:
    """What a model gave in evaluation mode: with gradients and without, and its work in products for each."""

    output: Array
    again: Array
    """The output without gradients."""
    flops: float
    flops_without_gradients: float


@dataclass(frozen=True, kw_only=True)
class EvaluationReply:
    """One run for each interval."""

    runs: list[EvaluatedRun]


@dataclass(frozen=True, kw_only=True)
class Evaluation(ProbeInputs[EvaluationReply], probe="lab4.checkpointing.evaluation"):
    """Run the model in evaluation mode."""

    case: Model
    intervals: list[int | None]


@dataclass(frozen=True, kw_only=True)
class KeptBytes:
    """What a forward pass keeps."""

    held_bytes: int
    """What it leaves allocated."""
    copied_bytes: int | None
    """From the device to the host; None of a real one, which nobody can ask."""
    forward_flops: float
    backward_flops: float
    """Of the backward pass that follows; forward passes that it repeats count."""
    saved_bytes: int
    """What passes the hooks of saved tensors."""


@dataclass(frozen=True, kw_only=True)
class SavedReply:
    """What is kept for each way, and the bytes of the input."""

    runs: list[KeptBytes]
    input_bytes: int


@dataclass(frozen=True, kw_only=True)
class Saved(ProbeInputs[SavedReply], probe="lab4.checkpointing.saved"):
    """Look at what a forward pass keeps for backward."""

    case: Model
    ways: list[Way]


CPU_INTERVALS = (3, None, 1)
"""Of a measurement on the CPU, of a model of two blocks: not in order, and the first is longer than the model."""


class Sizes(TypedDict):
    """The sizes that `measure_checkpointing` is given, by the names of its parameters."""

    num_layers: int
    width: int
    heads: int
    batch: int
    length: int


@dataclass(frozen=True, kw_only=True)
class ForwardStart:
    """What there is when a forward pass begins."""

    input_requires_gradient: bool
    gradients: int
    """Parameters that have a gradient."""
    dropouts: list[float]
    """Of the model's blocks, each number once."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What a step of the student's own model costs, measured by us."""

    seconds: list[float]
    """Of each measurement."""
    peak_bytes: int
    flops: float


@dataclass(frozen=True, kw_only=True)
class MeasuredReply:
    """A table of the submission's, and what it is compared with."""

    flops: float
    """Work in products of the whole measurement."""
    updates: int
    """Steps of optimizers in it."""
    blocks_made: int
    """Of transformers, by the first call."""
    most_blocks: int
    """Transformer blocks that were there at once."""
    forwards: list[list[ForwardStart]]
    """For each model, how each of its forward passes began."""
    on_cpu: list[Fields]
    rows: list[Fields]
    steps: list[StepCost]
    """For each interval."""
    device: str


@dataclass(frozen=True, kw_only=True)
class Measured(ProbeInputs[MeasuredReply], probe="lab4.checkpointing.measured"):
    """Let the submission measure steps, and measure the same steps."""

    intervals: list[int | None]
    sizes: Sizes
    steps: int
    warmup: int


class Result(TypedDict):
    """The fields of a made-up `labkit.results.CheckpointingResult`."""

    device: str
    checkpoint_every: int | None
    step_seconds: float
    peak_bytes: int


Measurement: TypeAlias = tuple[int | None, float, int]
"""An interval, its seconds and its peak in bytes."""


@dataclass(frozen=True)
class Choice:
    """Made-up measurements, and the budget that the best of them must keep."""

    rows: list[Measurement]
    budget: int

    @property
    def fitting(self) -> list[Measurement]:
        """The measurements within the budget."""
        return [row for row in self.rows if row[2] <= self.budget]


@dataclass(frozen=True, kw_only=True)
class BestReply:
    """For each choice the fields of the result that was chosen, or the name of the error."""

    chosen: list[dict[str, object] | str]


@dataclass(frozen=True, kw_only=True)
class Best(ProbeInputs[BestReply], probe="lab4.checkpointing.best"):
    """Let the submission choose the best interval of made-up results."""

    cases: list[Choice]
