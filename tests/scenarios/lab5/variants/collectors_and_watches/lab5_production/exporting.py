"""Samples are added one by one; nothing is a family before it has one."""

import json
import math
from dataclasses import asdict
from numbers import Real

from prometheus_client.core import Metric

from labkit.monitoring import names
from labkit.monitoring.nvml import THROTTLE_REASONS


def prometheus_metrics(snapshot, *, dcgm_names=False):
    families = {}

    def put(name, kind, documentation, value, labels):
        # A counter's family is called without the _total of its samples.
        family = name.removesuffix("_total") if kind == "counter" else name
        families.setdefault(name, Metric(family, documentation, kind)).add_sample(name, labels, value)

    label_names = names.DCGM_LABELS if dcgm_names else names.GPU_LABELS
    for gpu in snapshot.gpus:
        labels = dict(zip(label_names, (str(gpu.index), gpu.uuid or "", gpu.name or ""), strict=True))
        for metric in names.GPU_METRICS:
            value = getattr(gpu, metric.field)
            if value is None:
                continue
            if dcgm_names and metric.dcgm_name:
                kind = "unknown" if metric.kind == "counter" else "gauge"
                put(metric.dcgm_name, kind, metric.help, value * metric.dcgm_factor, labels)
            else:
                put(metric.name, metric.kind, metric.help, float(value), labels)
        if gpu.throttle_reasons is not None:
            for reason in THROTTLE_REASONS.values():
                on = 1 if reason in gpu.throttle_reasons else 0
                put(names.THROTTLED, "gauge", names.THROTTLED_HELP, on, {**labels, "reason": reason})
    for name, value in snapshot.metrics.items():
        put(names.training_name(name), "gauge", name, value, {})
    if snapshot.step is not None:
        put(names.STEP, "gauge", names.STEP_HELP, snapshot.step, {})
    if snapshot.step_time is not None:
        put(names.STEP_TIME, "gauge", names.STEP_TIME_HELP, snapshot.step_time, {})
    return iter(list(families.values()))


def _strict(value):
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
    return value


def _present(record):
    return {key: value for key, value in record.items() if value is not None}


def jsonl_line(snapshot):
    record = {
        "time": snapshot.time,
        "step": snapshot.step,
        "step_time": snapshot.step_time,
        "metrics": dict(snapshot.metrics),
        "gpus": [_present(asdict(gpu)) for gpu in snapshot.gpus],
        "alerts": [_present(asdict(alert)) for alert in snapshot.alerts],
        "message": snapshot.message,
    }
    return json.dumps(_strict(_present(record))) + "\n"


def write_tensorboard(writer, snapshot):
    scalars = {f"training/{name}": value for name, value in snapshot.metrics.items()}
    for gpu in snapshot.gpus:
        for name, value in asdict(gpu).items():
            if name != "index" and isinstance(value, Real) and not isinstance(value, bool):
                scalars[f"gpu{gpu.index}/{name}"] = value
    for tag in sorted(scalars):
        writer.add_scalar(tag, scalars[tag], snapshot.step)
