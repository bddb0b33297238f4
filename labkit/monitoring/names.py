"""What a metric is called in Prometheus: the names, kinds and help texts that our rules and dashboards rely on.

Base units, the unit at the end of the name, `_total` for what only rises: https://prometheus.io/docs/practices/naming/.
The other set of names is that of NVIDIA's dcgm-exporter, in *its* units, for dashboards that exist already:
https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One field of `GpuReading` as Prometheus should see it."""

    field: str
    name: str
    kind: str
    """"gauge" for what goes up and down, "counter" for what only rises."""
    help: str
    dcgm_name: str | None = None
    """None where dcgm-exporter has nothing like it: our own name is kept then."""
    dcgm_factor: float = 1.0
    """What DCGM shows is this many times what stands in the field: 1e-6 for MHz from hertz."""


GPU_METRICS = (
    Metric("up", "gpu_up", "gauge", "Whether the driver can reach the GPU (1) or has lost it (0)."),
    Metric(
        "utilization_ratio",
        "gpu_utilization_ratio",
        "gauge",
        "Share of the last sampling period in which a kernel ran.",
        "DCGM_FI_DEV_GPU_UTIL",
        100.0,
    ),
    Metric(
        "memory_busy_ratio",
        "gpu_memory_busy_ratio",
        "gauge",
        "Share of the last sampling period in which memory was read or written.",
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        100.0,
    ),
    Metric(
        "memory_used_bytes",
        "gpu_memory_used_bytes",
        "gauge",
        "Memory in use.",
        "DCGM_FI_DEV_FB_USED",
        2.0**-20,
    ),
    Metric(
        "memory_total_bytes",
        "gpu_memory_total_bytes",
        "gauge",
        "Memory that the GPU has.",
        "DCGM_FI_DEV_FB_TOTAL",
        2.0**-20,
    ),
    Metric(
        "temperature_celsius",
        "gpu_temperature_celsius",
        "gauge",
        "Temperature of the GPU.",
        "DCGM_FI_DEV_GPU_TEMP",
    ),
    Metric("power_watts", "gpu_power_watts", "gauge", "Power that the board draws.", "DCGM_FI_DEV_POWER_USAGE"),
    Metric(
        "power_limit_watts",
        "gpu_power_limit_watts",
        "gauge",
        "Power that the board may draw.",
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
    ),
    Metric(
        "energy_joules",
        "gpu_energy_joules_total",
        "counter",
        "Energy since the driver was loaded.",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        1000.0,
    ),
    Metric(
        "sm_clock_hertz",
        "gpu_sm_clock_hertz",
        "gauge",
        "Clock of the multiprocessors.",
        "DCGM_FI_DEV_SM_CLOCK",
        1e-6,
    ),
    Metric(
        "memory_clock_hertz",
        "gpu_memory_clock_hertz",
        "gauge",
        "Clock of the memory.",
        "DCGM_FI_DEV_MEM_CLOCK",
        1e-6,
    ),
    Metric(
        "pcie_sent_bytes_per_second",
        "gpu_pcie_sent_bytes_per_second",
        "gauge",
        "Bytes that the GPU sent over PCIe.",
        "DCGM_FI_PROF_PCIE_TX_BYTES",
    ),
    Metric(
        "pcie_received_bytes_per_second",
        "gpu_pcie_received_bytes_per_second",
        "gauge",
        "Bytes that the GPU received over PCIe.",
        "DCGM_FI_PROF_PCIE_RX_BYTES",
    ),
    Metric(
        "ecc_errors",
        "gpu_ecc_errors_total",
        "counter",
        "Uncorrected memory errors since the driver was loaded.",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    ),
    Metric("xid_errors", "gpu_xid_errors_total", "counter", "XID errors since the monitor was started."),
)
"""One time series per GPU that has the field, with the labels of GPU_LABELS."""

GPU_LABELS = ("gpu", "uuid", "name")
"""Index, UUID and name of the GPU."""
DCGM_LABELS = ("gpu", "UUID", "modelName")
"""The same under the names that dcgm-exporter gives them."""

THROTTLED = "gpu_throttled"
"""A gauge with one more label, `reason`: one time series for every reason of THROTTLE_REASONS, 1 or 0."""
THROTTLED_HELP = "Whether this reason keeps the clocks below their highest."

STEP, STEP_HELP = "training_step", "The step that was logged last."
STEP_TIME, STEP_TIME_HELP = "training_last_step_timestamp_seconds", "When the step last changed, since 1970."
SAMPLES, SAMPLES_HELP = "monitor_samples_total", "Times that the monitor asked all GPUs."
SECONDS, SECONDS_HELP = "monitor_seconds_total", "Seconds that the monitor spent on asking GPUs and on log_metrics."

TRAINING_NAMES = {
    "loss": "training_loss",
    "accuracy": "training_accuracy_ratio",
    "throughput": "training_samples_per_second",
    "learning_rate": "training_learning_rate",
    "gradient_norm": "training_gradient_norm",
}
"""Gauges without labels."""


def training_name(metric: str) -> str:
    """The name in Prometheus of a training metric: from TRAINING_NAMES, else `training_` and the name, with every
    character that Prometheus does not allow replaced by an underscore ("val/loss": "training_val_loss")."""
    return TRAINING_NAMES.get(metric) or "training_" + re.sub(r"[^a-zA-Z0-9_]", "_", metric)
