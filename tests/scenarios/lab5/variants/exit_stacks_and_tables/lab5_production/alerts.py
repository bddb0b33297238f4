"""Task 5.3: find out, inside the training, which rules are broken for long enough to alert somebody.

Not for the rules (`labkit.monitoring.rules`), which Prometheus evaluates in the same way from outside: a program that
hangs or is gone cannot raise an alert.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from labkit.monitoring import RULES, SLOWED_BY, Alert, GpuReading, Rule, Snapshot


def _memory(gpu: GpuReading) -> float | None:
    used, every = gpu.memory_used_bytes, gpu.memory_total_bytes
    return None if used is None or not every else used / every


_OF_GPUS: dict[str, tuple[Callable[[GpuReading], float | None], Callable[[float, float], bool]]] = {
    "GpuHot": (lambda gpu: gpu.temperature_celsius, float.__gt__),
    "GpuMemoryNearlyFull": (_memory, float.__gt__),
    "GpuUnderused": (lambda gpu: gpu.utilization_ratio, float.__lt__),
    "GpuThrottled": (lambda gpu: float(not set(SLOWED_BY).isdisjoint(gpu.throttle_reasons or ())), float.__eq__),
    "GpuErrors": (lambda gpu: sum(count for count in (gpu.ecc_errors, gpu.xid_errors) if count), float.__gt__),
    "GpuLost": (lambda gpu: float(not gpu.up), float.__eq__),
}
"""What is compared, and how."""
_LIMITS = {"GpuThrottled": 1.0, "GpuLost": 1.0, "GpuErrors": 0.0}
"""Of rules whose threshold does not count."""


def _broken(rule: Rule, snapshot: Snapshot) -> Iterator[tuple[int | None, float]]:
    """The GPUs, or None for the training, for which the condition of a rule holds, with the value."""
    if rule.name in _OF_GPUS:
        value_of, compare = _OF_GPUS[rule.name]
        for gpu in snapshot.gpus:
            value = value_of(gpu)
            if value is not None and compare(float(value), float(_LIMITS.get(rule.name, rule.threshold or 0.0))):
                yield gpu.index, float(value)
    elif rule.name == "LossNotFinite":
        loss = snapshot.metrics.get("loss")
        if loss is not None and not math.isfinite(loss):
            yield None, loss
    elif rule.name == "TrainingStalled":
        if snapshot.step_time is not None and snapshot.time - snapshot.step_time > (rule.threshold or 0.0):
            yield None, snapshot.time - snapshot.step_time
    else:
        raise ValueError(f"{rule.name} is no rule")


class AlertEngine:
    """Evaluates rules on one snapshot after the other.

    The conditions, by the names of the rules; one per GPU, each GPU on its own, except for the last two:
        - GpuHot: temperature above the threshold;
        - GpuThrottled: at least one of the throttle reasons is in SLOWED_BY; its value is 1.0;
        - GpuMemoryNearlyFull: used / total memory above the threshold;
        - GpuUnderused: utilization_ratio below the threshold;
        - GpuErrors: ecc_errors + xid_errors above 0, where one that is absent counts nothing;
        - GpuLost: `up` is False; its value is 1.0;
        - LossNotFinite: the metric "loss" is infinite or not a number; its value is the loss;
        - TrainingStalled: more seconds than the threshold since the step last changed (`step_time`).
    Above and below are strict. An absent value breaks no rule.

    An alert fires at the first snapshot at which its condition has held for `for_seconds` or more, counted from the
    first of an unbroken row of snapshots at which it held, and it fires until the first snapshot at which the condition
    does not hold. That is how Prometheus does it:
    https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/

    Args:
        rules: the rules, by default labkit's; their thresholds and times may be others than the defaults.
    """

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)
        self.since: dict[tuple[str, int | None], float] = {}
        """Given: when the condition of a rule began to hold, by the rule's name and GPU."""

    def evaluate(self, snapshot: Snapshot) -> tuple[Alert, ...]:
        """The alerts that fire at this snapshot, in the order of the rules, then of the GPUs.

        Args:
            snapshot: `time` never falls from one call to the next; its `alerts` are not looked at.

        Returns:
            For each an `Alert`: its `since` is the time of the first snapshot of the row, its `message` begins with the
            rule's name and names the GPU, if it is about one.

        Raises:
            ValueError: a rule has a name that is not listed above.
        """
        firing: list[Alert] = []
        row: dict[tuple[str, int | None], float] = {}
        starts: defaultdict[tuple[str, int | None], float] = defaultdict(lambda: snapshot.time, self.since)
        for rule in self.rules:
            for gpu, value in _broken(rule, snapshot):
                since = row[rule.name, gpu] = starts[rule.name, gpu]
                if since + rule.for_seconds > snapshot.time:
                    continue
                where = "" if gpu is None else f", GPU {gpu}"
                text = f"{rule.name}{where}: {rule.summary} [{value:g}]"
                firing.append(
                    Alert(rule=rule.name, severity=rule.severity, gpu=gpu, value=value, since=since, message=text)
                )
        self.since = row
        return tuple(firing)
