"""A condition is a function of a snapshot and a threshold that gives GPUs and values; it is registered by its rule."""

import functools
import math

from labkit.monitoring import SLOWED_BY

CONDITIONS = {}


def condition(rule):
    """Register the condition of a rule that is about the training."""

    def register(function):
        CONDITIONS[rule] = function
        return function

    return register


def of_each_gpu(rule):
    """Register the condition of a rule that is about one GPU; what it does not know is None."""

    def register(function):
        @functools.wraps(function)
        def each(snapshot, threshold):
            for gpu in snapshot.gpus:
                if (value := function(gpu, threshold)) is not None:
                    yield gpu.index, value

        CONDITIONS[rule] = each
        return function

    return register


@of_each_gpu("GpuHot")
def _hot(gpu, threshold):
    celsius = gpu.temperature_celsius
    return celsius if celsius is not None and celsius > threshold else None


@of_each_gpu("GpuThrottled")
def _throttled(gpu, threshold):
    reasons = gpu.throttle_reasons or ()
    return 1.0 if any(reason in SLOWED_BY for reason in reasons) else None


@of_each_gpu("GpuMemoryNearlyFull")
def _full(gpu, threshold):
    if gpu.memory_used_bytes is None or not gpu.memory_total_bytes:
        return None
    share = gpu.memory_used_bytes / gpu.memory_total_bytes
    return share if share > threshold else None


@of_each_gpu("GpuUnderused")
def _underused(gpu, threshold):
    share = gpu.utilization_ratio
    return share if share is not None and share < threshold else None


@of_each_gpu("GpuErrors")
def _errors(gpu, threshold):
    count = sum(number for number in (gpu.ecc_errors, gpu.xid_errors) if number is not None)
    return float(count) if count > 0 else None


@of_each_gpu("GpuLost")
def _lost(gpu, threshold):
    return None if gpu.up else 1.0


@condition("LossNotFinite")
def _not_finite(snapshot, threshold):
    if "loss" in snapshot.metrics and not math.isfinite(snapshot.metrics["loss"]):
        yield None, snapshot.metrics["loss"]


@condition("TrainingStalled")
def _stalled(snapshot, threshold):
    if snapshot.step_time is not None and (seconds := snapshot.time - snapshot.step_time) > threshold:
        yield None, seconds


def triples(rules, snapshot):
    """((rule, GPU), value) of all conditions that hold, rule by rule."""
    for rule in rules:
        try:
            holds = CONDITIONS[rule.name]
        except KeyError:
            raise ValueError(f"no condition is registered for {rule.name}") from None
        for gpu, value in holds(snapshot, rule.threshold):
            yield (rule.name, gpu), value
