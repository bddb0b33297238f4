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

from .telling import write_scalars

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
    # TODO(task 5.5):
    # 1. For each metric, make a family of its kind; CounterMetricFamily wants the name.
    # 2. Add a value for every GPU whose field is not None; a family without values need not be yielded.
    # 3. The reasons, then the training metrics.
    # --- solution: task 5.5 ---
    labels = DCGM_LABELS if dcgm_names else GPU_LABELS
    identities = {gpu.index: (str(gpu.index), gpu.uuid or "", gpu.name or "") for gpu in snapshot.gpus}
    families = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
    for metric in GPU_METRICS:
        by_dcgm = dcgm_names and metric.dcgm_name is not None
        name = metric.dcgm_name if by_dcgm else metric.name
        kind = UntypedMetricFamily if by_dcgm and metric.kind == "counter" else families[metric.kind]
        family = kind(name, metric.help, labels=labels)
        for gpu in snapshot.gpus:
            value = getattr(gpu, metric.field)
            if value is not None:
                family.add_metric(identities[gpu.index], value * (metric.dcgm_factor if by_dcgm else 1))
        if family.samples:
            yield family
    throttled = GaugeMetricFamily(THROTTLED, THROTTLED_HELP, labels=(*labels, "reason"))
    for gpu in snapshot.gpus:
        if gpu.throttle_reasons is not None:
            for reason in THROTTLE_REASONS.values():
                throttled.add_metric((*identities[gpu.index], reason), float(reason in gpu.throttle_reasons))
    if throttled.samples:
        yield throttled
    for logged, number in snapshot.metrics.items():
        yield GaugeMetricFamily(training_name(logged), f"Training metric {logged}.", value=number)
    if snapshot.step is not None:
        yield GaugeMetricFamily(STEP, STEP_HELP, value=snapshot.step)
        yield GaugeMetricFamily(STEP_TIME, STEP_TIME_HELP, value=snapshot.step_time)
    # --- end ---


def jsonl_line(snapshot: Snapshot) -> str:
    """A snapshot as one line of JSON, its newline included.

    An object with `time`, `step`, `metrics`, `gpus` (a list of readings without what is absent) and `alerts`; the form
    is that of `labkit.monitoring.plain`: what is None, `step` before the first one for example, is left out. The line
    is strict JSON whatever the values are: a loss that is not a number is exactly what somebody will look for.
    """
    # TODO(task 5.5):
    # 1. json.dumps of what plain makes of it; let it refuse what JSON does not have.
    # --- solution: task 5.5 ---
    return json.dumps(plain(snapshot), allow_nan=False) + "\n"
    # --- end ---


def write_tensorboard(writer: "SummaryWriter", snapshot: Snapshot) -> None:
    """Write a snapshot as scalars of its step: `training/NAME` for each metric, `gpuINDEX/FIELD` for each reading.

    Every number of a `GpuReading` but its index is a scalar, booleans and names are not, and what is absent is left
    out.

    Args:
        writer: where to write.
        snapshot: has a step.

    Source: https://docs.pytorch.org/docs/stable/tensorboard.html
    """
    # TODO(task 5.5):
    # 1. Each metric, and each GPU's numbers, by name.
    # 2. All of them to the writer, with their step: `write_scalars`, or `add_scalar` for one after the other.
    # --- solution: task 5.5 ---
    scalars = {f"training/{name}": value for name, value in snapshot.metrics.items()}
    for gpu in snapshot.gpus:
        for entry in fields(gpu):
            value = getattr(gpu, entry.name)
            if type(value) in (int, float) and entry.name != "index":
                scalars[f"gpu{gpu.index}/{entry.name}"] = value
    write_scalars(writer, scalars, snapshot.step)
    # --- end ---
