"""What the monitor's probes are given and return: made-up GPUs, logged metrics, and what the monitor said of them.

What the submission has a hand in may be anything where it is an `object`; checks judge it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from gradebox.sandbox.probe_types import ProbeInputs

Metrics: TypeAlias = dict[str, float | str]
"""Metrics by name; "nan" and "inf" are texts, since JSON has no such numbers."""
Logs: TypeAlias = list[tuple[int, Metrics]]
"""Steps, and what is logged of each."""


class MadeUpGpu(TypedDict, total=False):
    """What one GPU knows, in NVML's units; a key that is missing is not supported."""

    uuid: str
    name: str
    used_bytes: int
    total_bytes: int
    celsius: float
    power_milliwatts: int


@dataclass(frozen=True, kw_only=True)
class ExportedReply:
    """Everything that a monitor exported."""

    by_dcgm: str
    """What Prometheus scrapes of a monitor with `dcgm_names`."""
    first: str
    """What Prometheus scrapes before anything is logged."""
    text: str
    """What it scrapes in the end."""
    jsonl: str | None
    """The text of metrics.jsonl; None if there is no such file."""
    lines: list[int]
    """Lines in it after each step."""
    scalars: list[tuple[str, int, float | str]]
    """Tag, step and value of TensorBoard's scalars; values that are not finite as texts."""
    left_open: int
    """Starts of NVML without an end."""
    answers: bool
    """Whether the server still answers after `close`."""


@dataclass(frozen=True, kw_only=True)
class Exported(ProbeInputs[ExportedReply], probe="lab5.monitoring.exporting.exported"):
    """GPUs, and what is logged."""

    gpus: list[MadeUpGpu]
    logs: Logs


Timed: TypeAlias = tuple[float, object, float]
"""A time that the monitor named, between the times before and after the call."""


@dataclass(frozen=True, kw_only=True)
class MomentsReply:
    """Times of snapshots and of steps, and the seconds that a monitor says it took."""

    steps: list[Timed]
    """`step_time` after each logged step."""
    taken: list[Timed]
    """`time` of the snapshot after each logged step, and after a sample."""
    lengths: list[int]
    """Snapshots in the history before and after the sample."""
    in_history: object
    """Step and loss of the newest of them."""
    rounds: list[list[tuple[str, float, str]]]
    """Of calls of `log_metrics`, of one that writes many metrics to files, and of samples, in several rounds: /metrics
    before, seconds, /metrics after."""


@dataclass(frozen=True, kw_only=True)
class Moments(ProbeInputs[MomentsReply], probe="lab5.monitoring.exporting.moments"):
    """GPUs that take `question` seconds for each answer, how many calls of `log_metrics` are timed, and how many
    metrics another one writes to files."""

    gpus: list[MadeUpGpu]
    logs: int
    filed: int
    question: float


@dataclass(frozen=True, kw_only=True)
class ByRankReply:
    """Monitors in a process whose RANK is not 0."""

    silent: dict[str, object]
    """What one that is given no rank has, by name."""
    started: int
    """Starts of NVML by two that are given rank 0."""
    one_registry: bool
    """Whether those two have the same."""
    idle_text: str
    """What Prometheus scrapes of the one that is not told of any loss."""


@dataclass(frozen=True, kw_only=True)
class ByRank(ProbeInputs[ByRankReply], probe="lab5.monitoring.exporting.by_rank"):
    """GPUs, and the RANK in the environment."""

    gpus: list[MadeUpGpu]
    rank: int


@dataclass(frozen=True, kw_only=True)
class WithoutNvmlReply:
    """What a monitor without a GPU says and exports."""

    said: str
    """Printed at its start."""
    later: str
    """Printed afterwards."""
    text: str
    """What Prometheus scrapes."""
    messages: list[object]
    """The monitor's and the snapshot's `message`."""
    left_open: int


@dataclass(frozen=True, kw_only=True)
class WithoutNvml(ProbeInputs[WithoutNvmlReply], probe="lab5.monitoring.exporting.without_nvml"):
    """The name of the error with which NVML does not start; None: it starts and has no GPU."""

    error: str | None
    logs: Logs


@dataclass(frozen=True, kw_only=True)
class BackgroundReply:
    """Who asked the GPUs, while metrics were logged, while a question took long, and after the end."""

    holds_up: bool
    """Whether a program does not end because of it."""
    history: int
    latest: object
    """What the history says of GPU 0 in the end, in degrees; None if it says nothing."""
    elsewhere: int
    """Questions by other threads than the training's."""
    asked_by_logging: int
    reached: bool
    """Whether the background came to ask at all."""
    logged_meanwhile: bool
    logged_at: object
    """`time` of the snapshot that was logged while a GPU did not answer; None if none was."""
    sampled_at: object
    """`time` of the sample that this GPU answered afterwards; None if there is none in the history."""
    closed_meanwhile: bool
    sampled_after_close: int
    asked_after_close: int
    threads_left: int
    left_open: int


@dataclass(frozen=True, kw_only=True)
class Background(ProbeInputs[BackgroundReply], probe="lab5.monitoring.running.background"):
    """GPUs, how many samples are waited for, how many steps are logged, and the temperature that GPU 0 gets."""

    gpus: list[MadeUpGpu]
    samples: int
    logs: int
    celsius: int


@dataclass(frozen=True, kw_only=True)
class AlertReport:
    """An alert that the submission raised; numbers that are not finite are texts."""

    rule: object
    gpu: object
    severity: object
    since: float | str
    value: float | str
    message: str


class RuleChange(TypedDict, total=False):
    """What differs from a rule of labkit's."""

    threshold: float
    for_seconds: float


class ReadingCase(TypedDict, total=False):
    """The fields of labkit's `GpuReading` that alerts depend on."""

    index: int
    up: bool
    temperature_celsius: float | None
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    throttle_reasons: list[str] | None
    ecc_errors: int | None
    xid_errors: int | None


class SnapshotCase(TypedDict, total=False):
    """The fields of labkit's `Snapshot` that alerts depend on."""

    time: float
    step: int
    step_time: float | None
    metrics: Metrics
    gpus: list[ReadingCase]


@dataclass(frozen=True, kw_only=True)
class EvaluateReply:
    """The alerts of one engine."""

    alerts: list[list[AlertReport]]
    """At each snapshot."""
    refused: bool
    """Whether a rule of an unknown name raised a ValueError."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(ProbeInputs[EvaluateReply], probe="lab5.monitoring.alerts.evaluate"):
    """Changes of rules by the rule's name, and snapshots for one engine."""

    rules: dict[str, RuleChange]
    snapshots: list[SnapshotCase]


@dataclass(frozen=True, kw_only=True)
class RaisedReply:
    """The alerts of a monitor."""

    received: list[AlertReport]
    """Those that `on_alert` was called with."""
    firing: list[list[object]]
    """Rule and GPU of those in the last snapshot."""
    in_history: list[list[list[object]]]
    """Rule and GPU of those in the newest snapshot of the history, after each sample."""
    jsonl: str | None
    """The text of metrics.jsonl; None if there is no such file."""


@dataclass(frozen=True, kw_only=True)
class Raised(ProbeInputs[RaisedReply], probe="lab5.monitoring.alerts.raised"):
    """GPUs, the degrees of all of them at each step, and the steps at which the loss is not a number."""

    gpus: list[MadeUpGpu]
    celsius: list[list[float]]
    lost: list[bool]


@dataclass(frozen=True, kw_only=True)
class LeftBehind:
    """What a monitor that could not begin left behind."""

    error: str
    threads: int
    left_open: int


@dataclass(frozen=True, kw_only=True)
class FullMailbox:
    """What came of an `on_alert` that raises."""

    error: str
    """Of `log_metrics`."""
    received: list[AlertReport]
    samples_later: int
    """Samples that the background took afterwards."""
    said: str
    """Printed on standard error."""


@dataclass(frozen=True, kw_only=True)
class FailingReply:
    """What is left if something next to a monitor fails."""

    cases: dict[str, LeftBehind]
    """Monitors that cannot begin, by the reason."""
    alerts: FullMailbox
    others_go_on: bool | None
    """Whether `log_metrics` returned while `on_alert` took long; None if no alert came."""
    repeated: bool
    """Whether `log_metrics` called `on_alert` with the same alert meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Failing(ProbeInputs[FailingReply], probe="lab5.monitoring.running.failing"):
    """GPUs that name no temperature, an interval below 0, and the temperature at which an alert is raised.

    What `on_alert` raises names the `mailbox`.
    """

    gpus: list[MadeUpGpu]
    interval: float
    hot: int
    mailbox: int
