"""Inputs of Lab 3's checkpoints: networks that are saved and loaded, trainings that stop, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from gradebox.sandbox.observer import FileEvent
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.shared.dimensions import Case, Dimension, Space

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator
    from gradebox.sandbox import Request


FILE, RESUMED = "checkpoint.pt", "resumed.pt"
"""Checkpoints, by what they are called."""
FULL, BACK, MARK = "full", "back", "mark"
DISK_BYTES = 16 * 2**20
"""Of the disks that get full."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """Weights and inputs of a small network, whose checkpoint has some ten thousand bytes."""

    first: Array
    """[hidden, features]"""
    second: Array
    """[features, hidden]"""
    inputs: Array


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How the path is given, and of what sort optimizer and model are."""

    path_object: bool
    adam: bool
    frozen: bool
    """Whether the last layer is."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What a checkpoint must hold of model and optimizer."""

    parameters: Array
    buffer: Array
    count: Array
    """A buffer of whole numbers."""
    rates: Array
    """Learning rates of the optimizer's groups."""
    options: Array
    """All numbers among the other options of these groups, by their names."""
    momentum: Array
    """Whatever the optimizer remembers of its steps."""


@dataclass(frozen=True, kw_only=True)
class SaveReply:
    """What one rank observed."""

    files: list[str]
    """In its own working directory, before rank 0's disk was full."""
    complete: bool
    """Whether rank 0's file was what it is in the end when the call was over here."""
    written_bytes: int | None
    """How many this rank wrote in the call, wherever to; None if the system does not count them."""
    threads_left: int
    """That the call has started here, and that are there when all ranks are done."""
    returned_without_a_file: bool
    """Whether the call returned although rank 0's disk was full."""
    left: dict[str, int] | None
    """The files that are left in the end in all working directories: bytes by name. That of rank 0 is above the others;
    in `FULL` is what it began to write when its disk was full."""
    events: list[FileEvent] | None
    """What happened to files in rank 0's working directory. When the call was over on a rank, it made a file, `BACK`
    with its number."""
    content: Array
    """The bytes of this rank's file."""
    state: State


@dataclass(frozen=True, kw_only=True)
class Save(ProbeInputs[SaveReply], probe="lab3.checkpointing.save"):
    """Each rank saves under the same name in a working directory of its own."""

    network: Network
    kind: Kind
    epoch: int
    rate: float
    decay: float
    """The optimizer's weight decay, by which its other options differ as well."""
    replicated: bool
    """Whether the model is in DistributedDataParallel; then rank 0 comes late, and is slow to collect its state."""
    disk_bytes: int = DISK_BYTES


@dataclass(frozen=True, kw_only=True)
class GpuFileReply:
    """What was saved on a GPU."""

    content: Array
    parameters: Array


@dataclass(frozen=True, kw_only=True)
class SaveOnAGpu(ProbeInputs[GpuFileReply], probe="lab3.checkpointing.save_on_a_gpu"):
    """One process without a group saves a model that is on the GPU."""

    network: Network


@dataclass(frozen=True, kw_only=True)
class CpuModelReply:
    """What was loaded on a CPU."""

    parameters: Array


@dataclass(frozen=True, kw_only=True)
class LoadOnACpu(ProbeInputs[CpuModelReply], probe="lab3.checkpointing.load_on_a_cpu"):
    """A file with these bytes, loaded on a machine without a GPU."""

    content: Array
    network: Network


@dataclass(frozen=True, kw_only=True)
class LoadReply:
    """What one rank observed."""

    epoch: object
    """As `load_checkpoint` returned it."""
    state: State
    in_place: bool
    """Whether the model's parameters and buffers are the objects that they were."""
    model_only: Array
    """Parameters of a model that was loaded without an optimizer."""
    refused: dict[str, bool] = field(default_factory=dict)
    """Of one process alone: whether models that the file does not fit raised a RuntimeError, by what they are."""
    missing: bool = False
    """Of one process alone: whether a file that is not there raised an OSError."""


@dataclass(frozen=True, kw_only=True)
class Load(ProbeInputs[LoadReply], probe="lab3.checkpointing.load"):
    """A file with these bytes, loaded into a model of other weights."""

    content: Array
    network: Network
    kind: Kind
    replicated: bool


@dataclass(frozen=True, kw_only=True)
class InterruptedReply:
    """What was there after a save that failed."""

    failed: bool
    """Whether the save on a full disk raised an error."""
    silent: bool
    """Whether a save returned although nothing could be moved to its path."""
    unread: str
    """Why a file that nothing had happened to could not be loaded; empty if it could."""
    refused_there: str
    """Why nothing could be saved on another disk; empty if it could."""
    overwritten: bool
    """Whether a save wrote into the file that was there."""
    overwritten_there: bool
    """The same on another disk."""
    before: list[str]
    """The files before the save that failed."""
    left: dict[str, int] | None
    """Those in the end: bytes by name. What the checks know of them, and of `overwritten`, the system knows better."""
    events: list[FileEvent] | None
    """What happened to files in the folder of the checkpoint. Before the save that failed there came one, `MARK`."""
    loaded: str
    """Why the file could not be loaded after that; empty if it could. Only then there is what follows."""
    epoch: object = None
    saved: Array = None
    """Parameters before the save that failed."""
    parameters: Array = None
    """Those that the file has afterwards."""


@dataclass(frozen=True, kw_only=True)
class Interrupted(ProbeInputs[InterruptedReply], probe="lab3.checkpointing.interrupted"):
    """One process alone saves, saves again on a full disk, and loads."""

    network: Network
    disk_bytes: int = DISK_BYTES


class Options(TypedDict):
    """Arguments of `train` that are the same in all trainings of a case."""

    batch_size: int
    learning_rate: float
    momentum: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class ResumedRun:
    """What one rank observed in one training."""

    weight: Array
    """Afterwards."""
    batches: int
    """Forward passes in training mode."""
    epochs: object
    steps: object
    losses: object
    seconds: object
    """These four as `train` reported them."""
    least_seconds: float
    """From the first forward pass in training mode to the last, with what was between them."""
    versions: int
    """Of the checkpoint that the forward passes met, and the one at the end."""


@dataclass(frozen=True, kw_only=True)
class ResumeReply:
    """The trainings, and a checkpoint's bytes: after `kept_after` epochs, or in the end if it was not seen then."""

    runs: list[ResumedRun]
    content: Array
    events: list[FileEvent] | None
    """What happened to the checkpoint, `RESUMED`, and to files beside it."""


@dataclass(frozen=True, kw_only=True)
class Resume(ProbeInputs[ResumeReply], probe="lab3.checkpointing.resume"):
    """Trainings with dropout, one for each number of epochs in `until`, each with a new model."""

    weights: Array
    """[models, outputs, features]: with which weights the models begin, one after the other."""
    inputs: Array
    targets: Array
    options: Options
    until: list[int]
    checkpointed: bool
    path_objects: list[bool]
    """For each training whether its checkpoint's path is a `Path`."""
    dropout: float = 0.5
    """Share of the outputs."""
    saving_seconds: float = 0.0
    """How long it takes to collect the state of a model."""
    content: Array = None
    """Bytes of a checkpoint that is there before; None: there is none."""
    kept_after: int = 0
    """After how many epochs of the first training the checkpoint's bytes are kept, as if it was killed then."""


def _either(name: str, field: str) -> Dimension:
    return Dimension(name, ("no", "yes"), lambda case: "yes" if case[field] else "no")


_PATH = Dimension("path", ("a text", "a Path"), lambda case: "a Path" if case["path_object"] else "a text")
_KINDS = (_PATH, _either("Adam", "adam"), _either("frozen part", "frozen"))
"""What saved models differ in: of the two of a grading one is always what the other is not."""
_RESUMED_PATH = Dimension("path", _PATH.values, lambda case: case["path"])


def _kinds(request: Request) -> Iterator[Case]:
    yield {**request.params["kind"], "replicated": request.params["replicated"]}


def _resumed(request: Request) -> Iterator[Case]:
    params = request.params
    for place, epochs in enumerate(params["until"]):
        if not params["checkpointed"]:
            there = "none asked for"
        elif "content" not in request.tensors:
            there = "not there yet"
        else:
            there = ("half-way", "complete", "beyond")[place]
        path = None if not params["checkpointed"] else _PATH.values[params["path_objects"][place]]
        yield {"there": there, "path": path, "epochs": epochs}


_CHECKPOINT = Dimension(
    "checkpoint",
    ("none asked for", "not there yet", "half-way", "complete", "beyond"),
    lambda case: str(case["there"]),
)
SPACES = (
    Space(probes=(Save.probe,), cases=_kinds, dimensions=(_either("replicated", "replicated"), *_KINDS)),
    Space(probes=(Load.probe,), cases=_kinds, dimensions=(_either("replicated", "replicated"), *_KINDS)),
    Space(
        probes=(Resume.probe,),
        cases=_resumed,
        dimensions=(_CHECKPOINT, _RESUMED_PATH),
        apart={
            ("checkpoint=none asked for", "path=*"): "no path is given",
            ("checkpoint=not there yet", "path=a Path"): "the file that is then written is read by both",
        },
    ),
)
WITHOUT = {
    SaveOnAGpu.probe: "the same network as elsewhere, once: what counts is where it was",
    LoadOnACpu.probe: "the file of that one",
    Interrupted.probe: "one story of one file: saved, saved again on a full disk, loaded",
}


def network(generator: InputGenerator, name: str) -> Network:
    """The same sizes in a whole grading, and other numbers for each `name`."""
    sizes, generator = generator.shared("lab3.network"), generator.shared(name)
    features, hidden = sizes.odd(31, 39), sizes.odd(31, 39)
    return Network(
        first=generator.normal(hidden, features) / np.float32(features**0.5),
        second=generator.normal(features, hidden) / np.float32(hidden**0.5),
        inputs=generator.normal(5, features),
    )


def kind_of(generator: InputGenerator, *, replicated: bool) -> Kind:
    """What the replicated model of a grading is, or the other one."""
    (row,) = generator.shared("lab3.saved").cases({each.name: each.values for each in _KINDS}, 1)
    drawn = {each.name: (row[each.name] == each.values[1]) == replicated for each in _KINDS}
    return Kind(path_object=drawn["path"], adam=drawn["Adam"], frozen=drawn["frozen part"])


def saved(generator: InputGenerator, *, replicated: bool) -> Save:
    """One of the two models of a grading that are saved."""
    return Save(
        network=network(generator, "lab3.save"),
        kind=kind_of(generator, replicated=replicated),
        epoch=generator.shared("lab3.save").integer(3, 30),
        rate=generator.shared("lab3.rate").uniform(0.01, 0.02),
        decay=generator.shared("lab3.decay").uniform(0.01, 0.05),
        replicated=replicated,
    )


@dataclass(frozen=True)
class Resumption:
    """A training that is killed after some epochs and goes on from its checkpoint, and the same without a break."""

    epochs: int
    stop: int
    """After how many epochs its checkpoint is taken. It is asked for more, so that it cannot know the last one."""
    asked: int
    """Epochs that `stopped` is asked for."""
    whole: Resume
    stopped: Resume
    again: Resume
    """From the checkpoint of `stopped`, whose bytes are not known yet: the rest, then twice what is complete."""

    def without_momentum(self) -> Resumption:
        """The same with an optimizer that remembers nothing, and steps as large as momentum makes them in the end."""
        options = self.whole.options
        rate = options["learning_rate"] / (1 - options["momentum"])
        return self._with(options={**options, "momentum": 0.0, "learning_rate": rate})

    def without_dropout(self) -> Resumption:
        """The same with a model that draws no random numbers that count."""
        return self._with(dropout=0.0)

    def _with(self, **changed: Any) -> Resumption:
        """With these fields of each training. `Any`: whatever a `Resume` has."""
        runs = {name: replace(getattr(self, name), **changed) for name in ("whole", "stopped", "again")}
        return replace(self, **runs)


def resumption(generator: InputGenerator) -> Resumption:
    """Trainings on two ranks."""
    features, outputs, samples = generator.odd(5, 9), generator.integer(3, 4), 2 * generator.odd(13, 17)
    options: Options = {
        "batch_size": 4,
        "learning_rate": generator.uniform(0.005, 0.01),
        "momentum": 0.9,
        "seed": generator.integer(1, 99),
    }
    epochs, stop = 5, generator.integer(1, 3)
    asked = generator.integer(stop + 1, epochs)
    inputs = generator.normal(samples, features)
    targets = np.float32(3) * (inputs @ generator.normal(features, outputs)) + generator.normal(samples, outputs)
    weights = generator.normal(4, outputs, features)
    path_objects = [False, *generator.shuffled([True, False]), generator.integer(0, 1) == 1]

    def case(begin: Array, until: list[int], paths: list[bool], *, checkpointed: bool = True) -> Resume:
        return Resume(
            weights=begin,
            inputs=inputs,
            targets=targets,
            options=options,
            until=until,
            checkpointed=checkpointed,
            path_objects=paths,
        )

    return Resumption(
        epochs,
        stop,
        asked,
        whole=case(weights, [epochs], path_objects[:1], checkpointed=False),
        stopped=replace(case(weights, [asked], path_objects[:1]), saving_seconds=0.15, kept_after=stop),
        again=case(weights[1:], [epochs, epochs, stop], path_objects[1:]),
    )
