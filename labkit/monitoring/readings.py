"""What a monitor knows at one moment, in base units, and how it is written as JSON.

Not for asking a GPU (`labkit.monitoring.nvml` and the lab), and no PyTorch here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One reading of one GPU. None means that this GPU cannot tell, or could not this time: it never means zero."""

    index: int
    """As NVML counts, from 0."""
    uuid: str | None = None
    name: str | None = None
    up: bool = True
    """False when the driver has lost the GPU: everything that is measured is None then."""
    utilization_ratio: float | None = None
    """Share of the last sampling period (NVML's, up to a second) in which a kernel ran, 0 to 1."""
    memory_busy_ratio: float | None = None
    """Share of the same period in which the GPU's memory was read or written, 0 to 1."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Since the driver was loaded: it only rises."""
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    pcie_sent_bytes_per_second: float | None = None
    pcie_received_bytes_per_second: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Why the clocks are not at their highest, by names of `labkit.monitoring.nvml.THROTTLE_REASONS`, in its order;
    empty when they are."""
    ecc_errors: int | None = None
    """Uncorrected memory errors since the driver was loaded: it only rises."""
    xid_errors: int | None = None
    """XID errors that the driver reported since the monitor was started: it only rises."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A rule whose condition has held for long enough."""

    rule: str
    """The rule's name."""
    severity: str
    gpu: int | None
    """The index of the GPU that it is about; None where it is about the training."""
    value: float
    """What was compared: degrees, a ratio, seconds, a number of errors; 1.0 where nothing is compared."""
    since: float
    """When the condition began to hold, in seconds since 1970."""
    message: str
    """For people, in one line."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that a monitor knows at one moment."""

    time: float
    """Seconds since 1970."""
    step: int | None = None
    """The training step that was logged last; None before the first."""
    step_time: float | None = None
    """When the step last changed, in seconds since 1970."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The training metrics as they were last logged, each by its own name."""
    gpus: tuple[GpuReading, ...] = ()
    alerts: tuple[Alert, ...] = ()
    """Those that are firing."""
    message: str | None = None
    """Why there are no GPUs; None when there are some."""


def plain(value: Any) -> Any:
    """`value` as strict JSON has it: dataclasses as objects without their absent (None) fields, tuples as lists.

    JSON has no numbers that are not finite; they become the strings "NaN", "Infinity" and "-Infinity", as in the JSON
    of protocol buffers (https://protobuf.dev/programming-guides/json/).
    """
    if value is None or type(value) in (str, int, bool):  # most of what there is
        return value
    if is_dataclass(value) and not isinstance(value, type):
        values = {entry.name: getattr(value, entry.name) for entry in fields(value)}
        return {name: plain(item) for name, item in values.items() if item is not None}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
