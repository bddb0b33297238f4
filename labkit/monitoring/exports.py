"""What a monitor knows, for Prometheus, for TensorBoard and as lines of JSON.

Not for reading GPUs (gpus.py), nor for when to export: that is the lab's work.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UntypedMetricFamily
from prometheus_client.metrics_core import Metric

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
from labkit.monitoring.readings import Snapshot, plain

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
            if type(value) in (int, float) and entry.name != "index":
                scalars[f"gpu{gpu.index}/{entry.name}"] = value
    write_scalars(writer, scalars, snapshot.step)


def write_scalars(writer: Any, scalars: Mapping[str, float], step: int | None) -> None:
    """Write scalars of one step to a SummaryWriter in one event; `add_scalar` makes one of each, as costly."""
    from tensorboard.compat.proto.summary_pb2 import Summary  # not at the top, as the writer itself

    values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in scalars.items()]
    writer.file_writer.add_summary(Summary(value=values), step)


class MetricFiles:
    """The files of a monitor: `metrics.jsonl`, which is continued if it exists, and TensorBoard's event file.

    When they cannot be written any more (the disk is full), it says so once on standard error and writes no more: a
    monitor must not end a training.

    Args:
        folder: where they are; made if need be; None: nothing is written.

    Raises:
        OSError: the folder or a file cannot be made.
    """

    def __init__(self, folder: Path | str | None) -> None:
        self._jsonl: Any = None
        self._writer: Any = None
        if folder is None:
            return
        from torch.utils.tensorboard import SummaryWriter  # not at the top: it costs half a second

        Path(folder).mkdir(parents=True, exist_ok=True)
        self._jsonl = (Path(folder) / "metrics.jsonl").open("a", encoding="utf-8")
        self._writer = SummaryWriter(str(folder))

    def write(self, snapshot: Snapshot) -> None:
        """One line, which is in the file when the call returns, and the scalars of the snapshot's step."""
        if self._jsonl is None:
            return
        try:
            self._jsonl.write(jsonl_line(snapshot))
            self._jsonl.flush()
            write_tensorboard(self._writer, snapshot)
        except OSError as error:
            print(f"monitor: {error}: no more metrics are written to files", file=sys.stderr)
            self.close()

    def close(self) -> None:
        """Write what is left, as far as that can be done. A second call does nothing."""
        for file in (self._jsonl, self._writer):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        self._jsonl = self._writer = None
