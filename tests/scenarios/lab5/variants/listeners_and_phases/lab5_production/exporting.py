"""Task 5.5: what a monitor knows, for Prometheus, for TensorBoard and as a line of JSON.

Not for reading GPUs (gpu_readings.py), nor for when to export (monitor.py).
"""

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UntypedMetricFamily
from prometheus_client.metrics_core import Metric

from labkit.monitoring import GpuReading, Snapshot, plain
from labkit.monitoring.names import (
    DCGM_LABELS,
    GPU_LABELS,
    GPU_METRICS,
    STEP,
    STEP_HELP,
    STEP_TIME,
    STEP_TIME_HELP,
    THROTTLED,
    THROTTLED_HELP,
    training_name,
)
from labkit.monitoring.nvml import THROTTLE_REASONS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def _who(gpu: GpuReading) -> list[str]:
    return [str(gpu.index), gpu.uuid or "", gpu.name or ""]


def prometheus_metrics(snapshot: Snapshot, *, dcgm_names: bool = False) -> Iterator[Metric]:
    """A snapshot for Prometheus, with the names, kinds, labels and help texts of `labkit.monitoring.names`.

    Yields, as families of prometheus_client:
        - for each of GPU_METRICS one time series per GPU that has the field. What a GPU cannot tell has no time series:
          it is absent, never zero. Labels are GPU_LABELS; an unknown UUID or name is the empty string;
        - `gpu_throttled`, for every GPU that tells its reasons: one time series per reason of THROTTLE_REASONS, 1 or 0,
          with the label `reason` after the others;
        - for each training metric a gauge without labels, by `training_name`, once one was logged, and STEP and
          STEP_TIME. Every one holds the latest value: a step may fall, after a resume.

    With `dcgm_names`, metrics of GPU_METRICS that have a name of DCGM take it, with DCGM's unit (`dcgm_factor`); all
    GPU metrics have DCGM_LABELS. prometheus_client ends the name of every counter in `_total`, which DCGM's names
    do not: there counters are exported as untyped.

    Source: https://prometheus.io/docs/instrumenting/writing_exporters/
    """
    labels = DCGM_LABELS if dcgm_names else GPU_LABELS
    for metric in GPU_METRICS:
        foreign = metric.dcgm_name if dcgm_names else None
        counter = CounterMetricFamily if foreign is None else UntypedMetricFamily
        kind = counter if metric.kind == "counter" else GaugeMetricFamily
        family = kind(foreign or metric.name, metric.help, labels=labels)
        for gpu in snapshot.gpus:
            if (value := getattr(gpu, metric.field)) is not None:
                family.add_metric(_who(gpu), value * (metric.dcgm_factor if foreign else 1.0))
        yield family
    throttled = GaugeMetricFamily(THROTTLED, THROTTLED_HELP, labels=(*labels, "reason"))
    for gpu in snapshot.gpus:
        for reason in THROTTLE_REASONS.values() if gpu.throttle_reasons is not None else ():
            throttled.add_metric([*_who(gpu), reason], float(reason in (gpu.throttle_reasons or ())))
    yield throttled
    gauges = {training_name(name): (f"Training metric {name}.", value) for name, value in snapshot.metrics.items()}
    if snapshot.step is not None:
        gauges[STEP] = (STEP_HELP, snapshot.step)
    if snapshot.step_time is not None:
        gauges[STEP_TIME] = (STEP_TIME_HELP, snapshot.step_time)
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(name, text, value=value)


def jsonl_line(snapshot: Snapshot) -> str:
    """A snapshot as one line of JSON, its newline included.

    An object with `time`, `step`, `metrics`, `gpus` (a list of readings without what is absent) and `alerts`; the form
    is that of `labkit.monitoring.plain`: what is None, `step` before the first one for example, is left out. The line
    is strict JSON whatever the values are: a loss that is not a number is exactly what somebody will look for.
    """
    return json.dumps(plain(snapshot), allow_nan=False) + "\n"


def write_tensorboard(writer: "SummaryWriter", snapshot: Snapshot) -> None:
    """Write a snapshot as scalars of its step: `training/NAME` for each metric, `gpuINDEX/FIELD` for each reading.

    Every number of a `GpuReading` but its index is a scalar, booleans and names are not, and what is absent is left
    out.

    Args:
        writer: where to write.
        snapshot: has a step.

    Source: https://docs.pytorch.org/docs/stable/tensorboard.html
    """
    scalars = {f"training/{name}": value for name, value in snapshot.metrics.items()}
    for gpu in snapshot.gpus:
        for entry in fields(gpu):
            value = getattr(gpu, entry.name)
            if entry.name != "index" and isinstance(value, int | float) and not isinstance(value, bool):
                scalars[f"gpu{gpu.index}/{entry.name}"] = value
    for name, value in scalars.items():
        writer.add_scalar(name, value, global_step=snapshot.step)
