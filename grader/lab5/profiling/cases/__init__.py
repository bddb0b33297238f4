"""What the probes of profiling and tuning are given and return: jobs, timelines, and settings of a pipeline.

The fields of results that the submission makes (`DeviceTime` and others) may hold anything; checks judge them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypedDict

from gradebox.sandbox.probe_types import ProbeInputs

Span: TypeAlias = tuple[float, float]
"""Of an interval: its start and end in seconds; of an event: its start and duration."""


@dataclass(frozen=True, kw_only=True)
class RecordReply:
    """What `profile_job` made of a job, and the trace that it wrote."""

    refused: bool
    """Whether it refused to record no steps at all."""
    taken: int
    """Batches taken from the loader."""
    passes: int
    """How often the loader was begun; it has no end."""
    calls: object
    """The step numbers given to `after_step`."""
    losses: list[str]
    """What it was given for the loss, by its type."""
    updates: int
    """Optimizer steps made."""
    cleared: int
    """How often the optimizer or the model was told to clear gradients: then the host slept for it."""
    steps: object
    """Steps in the returned timeline."""
    events: dict[str, list[Span]] | None
    """Start and duration of the host's regions and copies, by name; None if there is no trace."""
    launched: list[str]
    """The names of all that ran on the GPU, in the order of launch."""


@dataclass(frozen=True, kw_only=True)
class Record(ProbeInputs[RecordReply], probe="lab5.profiling.recording.record"):
    """A job in which the host sleeps for `seconds` in each part, with batches of so many `samples`."""

    steps: int
    seconds: dict[str, float]
    suffix: str
    """How the trace's name ends."""
    samples: int
    pinned: bool
    """Whether batches lie in pinned memory, so that copies are not waited for."""


@dataclass(frozen=True, kw_only=True)
class NewFolderReply:
    """Whether there is a trace."""

    written: bool


@dataclass(frozen=True, kw_only=True)
class NewFolder(ProbeInputs[NewFolderReply], probe="lab5.profiling.recording.new_folder"):
    """Nothing: a small job whose trace goes to a folder that is not there."""


@dataclass(frozen=True, kw_only=True)
class OnCpuReply:
    """The errors of `profile_job` and `tune` of a job on the CPU; "" if there was none."""

    errors: list[str]


@dataclass(frozen=True, kw_only=True)
class OnCpu(ProbeInputs[OnCpuReply], probe="lab5.profiling.recording.on_cpu"):
    """Nothing: the job is always the same."""


@dataclass(frozen=True, kw_only=True)
class TimelineCase:
    """A timeline as labkit's `Timeline`: intervals in any order, overlapping, of what device and host did."""

    start: float
    stop: float
    steps: int
    kernels: list[Span]
    collectives: list[Span] = field(default_factory=list)
    copies_in: list[Span]
    copies_out: list[Span]
    waits: list[Span]
    regions: dict[str, list[Span]]


@dataclass(frozen=True, kw_only=True)
class AttributeReply:
    """`where_time_goes` of each timeline: the fields of a `DeviceTime`."""

    times: list[Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class Attribute(ProbeInputs[AttributeReply], probe="lab5.profiling.recording.attribute"):
    """Made-up timelines."""

    timelines: list[TimelineCase]


@dataclass(frozen=True, kw_only=True)
class BottlenecksReply:
    """What `find_bottleneck` returned for each step."""

    names: list[object]


@dataclass(frozen=True, kw_only=True)
class Bottlenecks(ProbeInputs[BottlenecksReply], probe="lab5.profiling.recording.bottlenecks"):
    """Made-up steps (the fields of a `DeviceTime`), each with a target; None: the default."""

    times: list[dict[str, float]]
    targets: list[float | None]


@dataclass(frozen=True, kw_only=True)
class JobCase:
    """A job: its batches, its model, how long batches take to come, and what is wrong with it."""

    samples: int
    width: int
    layers: int
    load_seconds: float
    look: bool = False
    """Whether it looks at metrics of every gradient after each step."""
    slow: list[float] = field(default_factory=list)
    """How long the first batches take instead."""


@dataclass(frozen=True, kw_only=True)
class PlantedReply:
    """What the student's functions say of a job."""

    times: Mapping[str, object]
    """The fields of a `DeviceTime`."""
    bottleneck: object
    timeline: TimelineCase
    """What `profile_job` recorded."""
    idle: list[bool]
    """Whether the device was, each time that a profiler was told of a step."""


@dataclass(frozen=True, kw_only=True)
class Planted(ProbeInputs[PlantedReply], probe="lab5.profiling.recording.planted"):
    """A job in which something is wrong, and how many of its steps are recorded."""

    job: JobCase
    steps: int


@dataclass(frozen=True, kw_only=True)
class PlantedReference(ProbeInputs[TimelineCase], probe="lab5.profiling.reference_runs.planted"):
    """The same job, timed by ourselves."""

    job: JobCase
    steps: int


class SettingsCase(TypedDict):
    """The fields of labkit's `PipelineSettings`."""

    batch_size: int
    num_workers: int
    pin_memory: bool
    log_every: int


class PointCase(TypedDict):
    """The fields of labkit's `TuningPoint`."""

    settings: SettingsCase
    samples_per_second: float
    utilization: float


class PointFields(TypedDict):
    """The fields of a `TuningPoint` that the submission returned."""

    settings: Mapping[str, object]
    samples_per_second: object
    utilization: object


@dataclass(frozen=True, kw_only=True)
class MakerCase:
    """What makes jobs of settings: their model, their samples, and what goes wrong with some of them."""

    width: int
    layers: int
    decode_seconds: float
    """Per sample."""
    too_large: int
    """Batches of so many samples do not fit in memory: the first step fails. Of larger ones the job cannot be made."""
    late_batch: int
    """The batch size with which one step is late."""
    late_steps: list[int]
    late_seconds: float
    slow_batch: int
    """The batch size with which each batch takes `slow_seconds` longer to come: then it is most of a step."""
    slow_seconds: float


@dataclass(frozen=True, kw_only=True)
class TunedReply:
    """What `tune` returned, and what it left."""

    points: list[PointFields]
    held: list[int]
    """Bytes on the GPU whenever a job was asked for."""
    beside: list[tuple[int, int]]
    """Samples of each step, and bytes on the GPU in it that are no parameters or gradients of its job."""
    error: str
    """What came out of it when tensors did not fit each other."""


@dataclass(frozen=True, kw_only=True)
class Tuned(ProbeInputs[TunedReply], probe="lab5.profiling.tuning.tuned"):
    """Settings to be measured."""

    maker: MakerCase
    settings: list[SettingsCase]
    steps: int
    warmup: int


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """What one choice of settings gives, measured by ourselves."""

    samples_per_second: float
    utilization: float
    by_mistake: dict[str, float]
    """Samples per second as they are measured by a mistake: the last step is not waited for, the warm-up is timed, or
    the first timed batch is fetched before the clock starts."""


@dataclass(frozen=True, kw_only=True)
class TunedReferenceReply:
    """A point for each of the settings."""

    points: list[MeasuredPoint]


@dataclass(frozen=True, kw_only=True)
class TunedReference(ProbeInputs[TunedReferenceReply], probe="lab5.profiling.reference_runs.tuned"):
    """The same settings, without those that do not fit."""

    maker: MakerCase
    settings: list[SettingsCase]
    steps: int
    warmup: int
    each_step_waited_for: bool = False
    """By a mistake. Asked only where speeds are wrong."""


@dataclass(frozen=True, kw_only=True)
class ChosenReply:
    """What `choose` took."""

    best: list[PointFields]
    """With each tolerance."""
    exact: PointFields
    """Of a point that is half as fast as another, if half may be lost."""
    refused: bool
    """Whether it refused to choose among none."""


@dataclass(frozen=True, kw_only=True)
class Chosen(ProbeInputs[ChosenReply], probe="lab5.profiling.tuning.chosen"):
    """Made-up points, and tolerances; None: the default."""

    points: list[PointCase]
    tolerances: list[float | None]
