"""What the probes of Lab 1's conclusions are given and return: made-up measurements, whose answer is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Required, TypedDict

from gradebox.sandbox.probe_types import ProbeInputs

Comparison = list[float]
"""Size, CPU seconds, GPU seconds."""


@dataclass(frozen=True, kw_only=True)
class CrossoverReply:
    """What `find_crossover` returned for each case: anything that JSON can say."""

    sizes: list[object]


@dataclass(frozen=True, kw_only=True)
class Crossover(ProbeInputs[CrossoverReply], probe="lab1.analysis.crossover"):
    """`find_crossover` of made-up comparisons."""

    cases: list[list[Comparison]]


class BoundCall(TypedDict, total=False):
    """Arguments of one call of `classify_bound`, which is given those that are there."""

    size: Required[int]
    peak_tflops: Required[float]
    bandwidth_bytes_per_second: Required[float]
    launch_seconds: Required[float]
    bytes_per_element: int


@dataclass(frozen=True, kw_only=True)
class BoundsReply:
    """What each call returned: anything that JSON can say."""

    bounds: list[object]
    endings: list[str]
    """How each call ended that must be refused."""


@dataclass(frozen=True, kw_only=True)
class Bounds(ProbeInputs[BoundsReply], probe="lab1.analysis.bounds"):
    """Calls of `classify_bound`, and calls that make no sense."""

    cases: list[BoundCall]
    refused: list[BoundCall]


class Reached(TypedDict):
    """A product, and the peak that its share is of."""

    size: int
    seconds: float
    peak_tflops: float


@dataclass(frozen=True, kw_only=True)
class PeakSharesReply:
    """What each call returned: anything that JSON can say."""

    shares: list[object]
    endings: list[str]
    """How each call ended that must be refused."""


@dataclass(frozen=True, kw_only=True)
class PeakShares(ProbeInputs[PeakSharesReply], probe="lab1.analysis.peak_shares"):
    """`peak_share` of results that took these seconds, and with peaks that make no sense."""

    cases: list[Reached]
    refused: list[float]


@dataclass(frozen=True, kw_only=True)
class BottlenecksReply:
    """What `find_bottleneck` and `stage_increases` returned for each profile: anything that JSON can say."""

    stages: list[object]
    increases: list[list[object]]
    """Pairs of a name and a size, in the order of the dictionary."""


@dataclass(frozen=True, kw_only=True)
class Bottlenecks(ProbeInputs[BottlenecksReply], probe="lab1.analysis.bottlenecks"):
    """`find_bottleneck` and `stage_increases` of made-up profiles: of each figure a row for each profile."""

    peaks: list[list[int]]
    allocated: list[list[int]]
    reserved: list[list[int]]


class Operation(TypedDict):
    """An `OperationTime` that a submission returned: each field may be anything that JSON can say."""

    name: object
    calls: object
    cpu_seconds: object
    device_seconds: object


class RecordedOperations(TypedDict):
    """What the virtual GPU's record says."""

    seconds: dict[str, tuple[float, float]]
    """On the host and on the device, by name."""
    idle_at_start: bool


@dataclass(frozen=True, kw_only=True)
class ProfileReply:
    """What `profile_operations` returned, and what ran."""

    operations: list[Operation]
    steps_run: int
    device_record: RecordedOperations | None
    """None on a real GPU."""
    recorded: bool
    """Whether PyTorch's profiler sees kernels here."""


@dataclass(frozen=True, kw_only=True)
class ProfileOnGpu(ProbeInputs[ProfileReply], probe="lab1.analysis.profile_on_gpu"):
    """`profile_operations` of a step whose operations are known."""

    size: int
    """Rows and columns of the operands of `mm` and `exp`."""
    repeats: dict[str, int]
    """How often each operation runs in a step."""
    beside: dict[str, int]
    """Operations that run after them, and how often."""
    without_kernel: dict[str, int]
    """Operations that launch nothing, and how often."""
    steps: int
    warmup: int
    indexed: bool
    """Whether the GPU is named with its index."""


class ProfileCall(TypedDict, total=False):
    """Arguments of `profile_operations` that make no sense."""

    steps: int
    warmup: int


@dataclass(frozen=True, kw_only=True)
class CpuProfileReply:
    """What `profile_operations` returned on a CPU, and what ran."""

    operations: list[Operation]
    steps_run: int
    step_seconds: list[float]
    """Of the steps that were to be profiled."""
    endings: list[str]
    """How each call ended that must be refused."""


@dataclass(frozen=True, kw_only=True)
class ProfileOnCpu(ProbeInputs[CpuProfileReply], probe="lab1.analysis.profile_on_cpu"):
    """`profile_operations` of operations that call others."""

    size: int
    steps: int
    warmup: int
    refused: list[ProfileCall]


Named = tuple[str, float, float]
"""An operation's name, CPU seconds, device seconds."""


@dataclass(frozen=True, kw_only=True)
class SlowestReply:
    """The names that `slowest` gave for each case."""

    names: list[list[object]]
    endings: list[str]
    """How each call ended that must be refused."""


@dataclass(frozen=True, kw_only=True)
class Slowest(ProbeInputs[SlowestReply], probe="lab1.analysis.slowest"):
    """`slowest` of made-up operations."""

    cases: list[list[Named]]
    counts: list[int | None]
    """How many it is asked for; None: it is not told."""
    refused: list[int]


WITHOUT: dict[str, str] = {
    ProfileOnCpu.probe: "one recording on a CPU: how steps and warm-ups differ is asked of a GPU",
}
