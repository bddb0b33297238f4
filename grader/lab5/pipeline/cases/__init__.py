"""What the trainer's probes are given and return: trainings of a linear classifier, and what became of them.

The fields of results that the submission makes (`EpochResult` and others) may hold anything; checks judge them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from gradebox.sandbox.probe_types import Array, ProbeInputs

Fields: TypeAlias = Mapping[str, object]
"""The fields of a dataclass that the submission returned, by name."""
Batches: TypeAlias = list[list[int]]
"""The numbers of the samples of each batch that passed a model, in the order of the batches."""


GROWTH = 3
"""Good steps in a row after which the loss scale grows."""


class Settings(TypedDict, total=False):
    """Fields of the submission's `TrainerConfig`."""

    epochs: int
    optimizer: str
    momentum: float
    weight_decay: float
    learning_rate: float
    warmup_steps: int
    minimum_ratio: float
    accumulation_steps: int
    max_grad_norm: float | None
    dtype: str
    initial_scale: float
    log_every_steps: int
    save_every_steps: int
    keep_checkpoints: int


@dataclass(frozen=True, kw_only=True)
class Training:
    """Some epochs: samples, a model whose last column of weights is the bias, and a configuration."""

    weight: Array
    inputs: Array
    classes: Array
    batch_size: int
    config: Settings

    def described(self) -> str:
        """In words, for messages."""
        names = ("epochs", "accumulation_steps", "max_grad_norm", "optimizer", "weight_decay")
        config: Mapping[str, object] = self.config
        settings = ", ".join(f"{name}={config[name]}" for name in names if name in config)
        return f"{len(self.classes)} samples in batches of {self.batch_size}; {settings}"

    def batches(self, ranks: int) -> int:
        """Of one rank in one epoch."""
        return math.ceil(math.ceil(len(self.inputs) / ranks) / self.batch_size)

    def steps_per_epoch(self, ranks: int) -> int:
        """Optimizer steps in one epoch."""
        return math.ceil(self.batches(ranks) / self.config["accumulation_steps"])

    def total_steps(self, ranks: int) -> int:
        """Optimizer steps in all epochs."""
        return self.config["epochs"] * self.steps_per_epoch(ranks)

    def taken(self, batches: Sequence[int]) -> list[int]:
        """The windows, on one rank, whose steps were taken after these batches, both counted from 0."""
        size, per_epoch, each_epoch = self.config["accumulation_steps"], self.batches(1), self.steps_per_epoch(1)
        return [batch // per_epoch * each_epoch + batch % per_epoch // size for batch in batches]

    def windows_by_rank(self, batches_by_rank: Sequence[Batches]) -> list[list[Batches]]:
        """The batches behind each optimizer step, by rank, fewer at the end of an epoch."""
        per_epoch, size = self.batches(len(batches_by_rank)), self.config["accumulation_steps"]
        total = len(batches_by_rank[0])
        windows = []
        for epoch in range(0, total, per_epoch):
            last = min(epoch + per_epoch, total)
            for start in range(epoch, last, size):
                windows.append([rank[start : min(start + size, last)] for rank in batches_by_rank])
        return windows

    def windows(self, batches_by_rank: Sequence[Batches]) -> Batches:
        """The samples behind each optimizer step, of all ranks."""
        windows = self.windows_by_rank(batches_by_rank)
        return [[number for batches in window for batch in batches for number in batch] for window in windows]


@dataclass(frozen=True, kw_only=True)
class TrainedEpochs:
    """What `train_epoch` made of one training on one rank."""

    results: list[Fields]
    """Each epoch's `EpochResult`."""
    batches: Batches
    validated: int
    """Samples that passed the model in evaluation mode."""
    modes: list[bool]
    """Whether the model was in training mode after each epoch."""
    rates: list[float]
    """The learning rate of each optimizer step."""
    steps: object
    """`ProductionTrainer.steps` in the end."""
    weight: Array
    frozen: bool
    """Whether the parameter that needs no gradient is what it was."""
    logged_samples: list[object]
    """What `log_step` was told of each step's samples."""
    reduced_gradients: float
    """Bytes reduced among ranks, in sizes of all gradients."""
    early_gradients: float = 0.0
    """Bytes exchanged in any way between the forward passes of windows, in sizes of all gradients."""
    written_bytes: int | None = None
    """To files, pipes and the network, by the operating system's count; None where it counts none."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Some epochs of a training: the samples of each batch, and the weights that they lead to."""

    batches: Batches
    weight: Array


@dataclass(frozen=True, kw_only=True)
class EpochsReply:
    """What became of each training, and of the first one's epochs in other orders, by their description."""

    runs: list[TrainedEpochs]
    orders: dict[str, Order]
    loopback_bytes: int | None
    """What the ranks told each other, by the network's own counter; None if it does not tell."""


@dataclass(frozen=True, kw_only=True)
class Epochs(ProbeInputs[EpochsReply], probe="lab5.pipeline.training.epochs"):
    """Trainings, each of them for a trainer of its own.

    In evaluation mode, in which no epoch is trained, logits are `asleep` times as large.
    """

    trainings: list[Training]
    asleep: float


@dataclass(frozen=True, kw_only=True)
class LoggedStep:
    """What the monitor received of one step."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class MixedReply:
    """Epochs in float16 or bfloat16, and a validation."""

    results: list[Fields]
    even: Fields
    """The `EpochResult` of a model that holds every class for equally likely, and hardly learns."""
    validation: Fields
    products: list[list[str]]
    """The dtypes of products in training, and in validation."""
    parameters: str
    """The dtype of the parameters."""
    batches: Batches
    taken: list[int]
    """The batch with which each optimizer step was taken, counted from 0."""
    rates: list[float]
    """The learning rate of each optimizer step, and of the next one."""
    weight: Array
    steps: object
    scale: float | None
    windows: list[bool]
    """What `train_window` returned."""
    event_files: int
    """TensorBoard's, before the validation."""
    saved: list[str]
    """Checkpoints that the epochs left."""
    logged: list[LoggedStep]


@dataclass(frozen=True, kw_only=True)
class Mixed(ProbeInputs[MixedReply], probe="lab5.pipeline.training.mixed"):
    """A training in 16 bits; the loss scale grows after `growth` steps in a row that were taken."""

    training: Training
    growth: int


@dataclass(frozen=True, kw_only=True)
class Validated:
    """One call of `validate`, and each module's mode before and after it."""

    result: Fields
    before: list[bool]
    modes: list[bool]


@dataclass(frozen=True, kw_only=True)
class ValidateReply:
    """`validate` with the model in training and in evaluation mode."""

    training: Validated
    evaluation: Validated
    graphs: int
    """Outputs that held a graph."""
    replica_calls: int
    """How often the replica was called, whose forward pass may communicate; 0 on one rank."""
    passes: int
    """How often the validation loader was gone through, in two validations."""
    empty: str
    """The error without any sample; "" on several ranks."""


@dataclass(frozen=True, kw_only=True)
class Validate(ProbeInputs[ValidateReply], probe="lab5.pipeline.training.validate"):
    """Validation batches of `sizes[rank]` samples: a model whose output is their `logits`, and their `classes`."""

    logits: Array
    classes: Array
    sizes: list[list[int]]
    dtype: str
    """Of the configuration; the model is of float64, which autocast leaves as it is."""
    epochs: int


@dataclass(frozen=True, kw_only=True)
class EndState:
    """Everything that two equal runs have in common in the end."""

    batches: Batches
    steps: object
    rate: str
    """The learning rate of the next step, in hexadecimal."""
    scale: float | None
    weight: Array
    optimizer: str
    """A hash of its state."""
    random: dict[str, str]
    """Hashes of the states of all generators, by name."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A file that a trainer of this training has written in another process."""

    training: Training
    name: str
    content: Array
    """Its bytes."""


@dataclass(frozen=True, kw_only=True)
class ResumeReply:
    """A run in one part, and the same run in two."""

    expected: EndState
    complete: bool
    """Whether the checkpoint was there when `save_checkpoint` returned."""
    again: EndState
    begin: object
    """What `load_checkpoint` returned."""
    next_epoch: object
    """The trainer's attribute right after that."""
    results: list[Fields]
    """Each epoch's `EpochResult` of the run in one part."""
    resumed: list[Fields]
    """Those of the second part."""
    drawn: list[dict[str, str]]
    """Hashes of the generators' states before and after the checkpoint was saved."""
    fixed: list[str]
    """Generators that were at a batch where they also were in a run with other random numbers: training sets them."""
    loaded: list[dict[str, str]]
    """Hashes of the parts of a trainer when it saved the checkpoint, and of the other one's once it had loaded it."""
    refused: str
    """The error of a single process that loads the checkpoint of several; "" of a run on one rank."""
    name: str
    content: Array
    """The checkpoint that was loaded, and its bytes."""
    elsewhere: EndState | None
    """Of the run that went on from the checkpoint of another process."""


@dataclass(frozen=True, kw_only=True)
class Resume(ProbeInputs[ResumeReply], probe="lab5.pipeline.resuming.resume"):
    """A training that is left after `stop` epochs, or, in the `middle`, after the first step of the next one."""

    training: Training
    stop: int
    middle: bool
    earlier: Checkpoint | None = None
    """What the process of another request has written, to go on from."""


class RunFields(TypedDict):
    """The fields of a `TrainerRun` that checks read; of a returned one, its lists are lists."""

    ended: object
    epochs: list[object]
    validations: list[object]
    optimizer_steps: object
    best_epoch: object


@dataclass(frozen=True, kw_only=True)
class StoppedRun:
    """A `fit` that SIGTERM stopped, and the one of a new trainer that went on from there."""

    stopped: RunFields
    run: RunFields
    batches: int
    """Batches of the first one."""
    again: EndState
    loaded: list[dict[str, str]]
    """As in `ResumeReply`."""


@dataclass(frozen=True, kw_only=True)
class StoppedReply:
    """A `fit` left alone, and one for each place that was stopped there."""

    expected: EndState
    uninterrupted: RunFields
    files: list[str]
    """Checkpoints of the run left alone."""
    saved_before: list[bool]
    """At each validation of it, whether the checkpoint of the last step was there."""
    received: int
    """Times that SIGTERM came through to the process's own handler."""
    places: dict[str, StoppedRun]
    left: dict[str, int] | None
    """Sizes of the files that are left in the end, as the system has them; None if it does not tell."""
    content: Array
    """The bytes of the checkpoint `kept` of the run left alone."""
    elsewhere: EndState | None
    """Of the `fit` that went on from the checkpoint of another process, on rank 0."""


@dataclass(frozen=True, kw_only=True)
class Stopped(ProbeInputs[StoppedReply], probe="lab5.pipeline.resuming.stopped"):
    """A training, and places at which SIGTERM comes to one rank: each the number of a sample, by its name."""

    training: Training
    places: dict[str, int]
    signalled: dict[str, int]
    """That rank, by the place."""
    kept: str
    """The name of a checkpoint in the middle of an epoch."""
    earlier: Checkpoint | None = None
    """As in `Resume`."""


@dataclass(frozen=True, kw_only=True)
class LoggedReply:
    """What a `fit` left behind on one rank."""

    batches: Batches
    files: list[str]
    entries: dict[str, list[tuple[float, float]]]
    """What TensorBoard shows: step and value of each entry, by tag."""
    again: dict[str, list[tuple[float, float]]]
    """The same after another trainer went back to an older checkpoint; empty on several ranks."""
    loaded: list[dict[str, str]]
    """As in `ResumeReply`, of that trainer."""
    logged: list[LoggedStep]
    left: dict[str, int] | None
    """As in `StoppedReply`, of all ranks."""
    written_bytes: int | None
    """By `fit`, as in `TrainedEpochs`."""


@dataclass(frozen=True, kw_only=True)
class Logged(ProbeInputs[LoggedReply], probe="lab5.pipeline.resuming.logged"):
    """A training; on one rank, then another goes back to the checkpoint of step `back_to`."""

    training: Training
    back_to: int
