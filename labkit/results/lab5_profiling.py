"""What Lab 5's profiling measures: where the seconds of a training step go, and what settings do to them.

Not for measuring, and no PyTorch here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """The settings of a training loop that leave the model as it is."""

    batch_size: int = 16
    """Samples per step."""
    num_workers: int = 0
    """Processes that load batches; 0: the loop loads them itself."""
    pin_memory: bool = False
    """Whether batches wait in pinned memory, from which copies to the GPU need not be waited for."""
    log_every: int = 1
    """Steps from one look at the training metrics to the next. A look waits for the GPU."""


@dataclass(frozen=True, kw_only=True)
class DeviceTime:
    """What the device does, or waits for, in the seconds of one training step; the six add up to the step."""

    compute_seconds: float
    """At least one kernel runs that is no collective."""
    communication_seconds: float
    """Nothing runs but collectives."""
    data_seconds: float
    """Idle, while the host waits for a batch."""
    transfer_seconds: float
    """Idle, while a batch is copied to the device."""
    sync_seconds: float
    """Idle, because the host had waited for the device before it went on."""
    launch_seconds: float
    """Idle, because the host launches kernels more slowly than the device runs them."""

    @property
    def step_seconds(self) -> float:
        """The whole step."""
        busy = self.compute_seconds + self.communication_seconds
        return busy + self.data_seconds + self.transfer_seconds + self.sync_seconds + self.launch_seconds

    @property
    def utilization(self) -> float:
        """The share of a step in which at least one kernel runs, collectives included, 0 to 1: what NVML calls
        utilisation (nvml.h, nvmlUtilization_t)."""
        return (self.compute_seconds + self.communication_seconds) / self.step_seconds


@dataclass(frozen=True, kw_only=True)
class TuningPoint:
    """What one choice of settings gives."""

    settings: PipelineSettings
    samples_per_second: float
    utilization: float
    """Share of the time in which at least one kernel ran, 0 to 1, as NVML counts."""


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """The pipeline at one stage of its improvement."""

    name: str
    """What was done to get here: "as found", for example."""
    point: TuningPoint
    bottleneck: str
    """By `find_bottleneck`: what to work on next."""
    device_time: DeviceTime
    nvml_utilization: float | None
    """NVML's figure for a longer run, 0 to 1; None without NVML."""
