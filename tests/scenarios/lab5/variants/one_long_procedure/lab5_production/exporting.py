"""Task 5.5: what a monitor knows, for Prometheus, for TensorBoard and as a line of JSON.

Not for reading GPUs (gpu_readings.py), nor for when to export (monitor.py).
"""

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UntypedMetricFamily
from prometheus_client.metrics_core import Metric

from labkit.monitoring import Snapshot, plain
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
    labels = list(DCGM_LABELS if dcgm_names else GPU_LABELS)
    identities = {gpu.index: [str(gpu.index), gpu.uuid or "", gpu.name or ""] for gpu in snapshot.gpus}
    for metric in GPU_METRICS:
        values = {gpu.index: getattr(gpu, metric.field) for gpu in snapshot.gpus}
        values = {index: float(value) for index, value in values.items() if value is not None}
        if not values:
            continue
        if dcgm_names and metric.dcgm_name is not None:
            values = {index: value * metric.dcgm_factor for index, value in values.items()}
            if metric.kind == "counter":
                family = UntypedMetricFamily(metric.dcgm_name, metric.help, labels=labels)
            else:
                family = GaugeMetricFamily(metric.dcgm_name, metric.help, labels=labels)
        elif metric.kind == "counter":
            family = CounterMetricFamily(metric.name, metric.help, labels=labels)
        else:
            family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
        for index, value in values.items():
            family.add_metric(identities[index], value)
        yield family
    telling = [gpu for gpu in snapshot.gpus if gpu.throttle_reasons is not None]
    if telling:
        family = GaugeMetricFamily(THROTTLED, THROTTLED_HELP, labels=[*labels, "reason"])
        for gpu in telling:
            for reason in THROTTLE_REASONS.values():
                family.add_metric([*identities[gpu.index], reason], 1 if reason in gpu.throttle_reasons else 0)
        yield family
    if snapshot.step is not None:
        yield GaugeMetricFamily(STEP, STEP_HELP, value=snapshot.step)
    if snapshot.step_time is not None:
        yield GaugeMetricFamily(STEP_TIME, STEP_TIME_HELP, value=snapshot.step_time)
    taken = {STEP, STEP_TIME}
    for name, value in reversed(list(snapshot.metrics.items())):
        if training_name(name) not in taken:
            taken.add(training_name(name))
            yield GaugeMetricFamily(training_name(name), f"{name}, as it was logged last", value=value)


def jsonl_line(snapshot: Snapshot) -> str:
    """A snapshot as one line of JSON, its newline included.

    An object with `time`, `step`, `metrics`, `gpus` (a list of readings without what is absent) and `alerts`; the form
    is that of `labkit.monitoring.plain`: what is None, `step` before the first one for example, is left out. The line
    is strict JSON whatever the values are: a loss that is not a number is exactly what somebody will look for.
    """
    whole = plain(snapshot)
    line = {key: whole[key] for key in ("time", "step", "metrics", "gpus", "alerts") if key in whole}
    return json.dumps(line, allow_nan=False, separators=(",", ":"), sort_keys=True) + "\n"


def write_tensorboard(writer: "SummaryWriter", snapshot: Snapshot) -> None:
    """Write a snapshot as scalars of its step: `training/NAME` for each metric, `gpuINDEX/FIELD` for each reading.

    Every number of a `GpuReading` but its index is a scalar, booleans and names are not, and what is absent is left
    out.

    Args:
        writer: where to write.
        snapshot: has a step.

    Source: https://docs.pytorch.org/docs/stable/tensorboard.html
    """
    for name in snapshot.metrics:
        writer.add_scalar("training/" + name, snapshot.metrics[name], snapshot.step)
    for gpu in snapshot.gpus:
        numbers = {field.name: getattr(gpu, field.name) for field in fields(gpu)}
        del numbers["index"]
        for name, number in numbers.items():
            if type(number) in (int, float):
                writer.add_scalar(f"gpu{gpu.index}/{name}", number, snapshot.step)
