"""What Lab 5's monitor costs.

Not for measuring, and no PyTorch here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MonitorOverhead:
    """The same training steps without and with a monitor."""

    device: str
    """Where the model ran: "cpu" or "cuda"."""
    steps: int
    """Steps that were timed, each way."""
    interval_seconds: float
    """From one reading of the GPUs to the next."""
    gpus: int
    """GPUs that were read; 0 without NVML."""
    bare_step_seconds: float
    """Median seconds of a step without a monitor."""
    monitored_step_seconds: float
    """Median seconds of a step with one, log_metrics after each step included."""
    overhead_ratio: float
    """monitored_step_seconds / bare_step_seconds - 1."""
    log_seconds: float
    """Median seconds of one call of log_metrics."""
    sample_seconds: float
    """Mean seconds of one reading of all GPUs, in the monitor's own thread."""
