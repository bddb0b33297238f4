"""Task 5.3: find out, inside the training, which rules are broken for long enough to tell somebody.

Not for the rules (`labkit.monitoring.rules`), which Prometheus evaluates in the same way from outside: a program that
hangs or is gone cannot raise an alert.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from labkit.monitoring import RULES, SLOWED_BY, Alert, Rule, Snapshot

GPU = Any


class AlertEngine:
    """Evaluates rules on one snapshot after the other.

    The conditions, by the names of the rules; one per GPU, each GPU on its own, but for the last two:
        - GpuHot: temperature above the threshold;
        - GpuThrottled: at least one of the throttle reasons is in SLOWED_BY; its value is 1.0;
        - GpuMemoryNearlyFull: used / total memory above the threshold;
        - GpuUnderused: utilization_ratio below the threshold;
        - GpuErrors: ecc_errors + xid_errors above 0, where one that is absent counts nothing;
        - GpuLost: `up` is False; its value is 1.0;
        - LossNotFinite: the metric "loss" is infinite or not a number; its value is the loss;
        - TrainingStalled: more seconds than the threshold since the step last changed (`step_time`).
    Above and below are strict. What is absent breaks no rule.

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
        unknown = [rule.name for rule in self.rules if rule.name not in _CONDITIONS]
        if unknown:
            raise ValueError(f"nobody knows {', '.join(unknown)}")
        firing, holding = [], {}
        for rule in self.rules:
            for gpu, value in _CONDITIONS[rule.name](snapshot, rule.threshold):
                begin = holding[rule.name, gpu] = self.since.get((rule.name, gpu), snapshot.time)
                if snapshot.time - begin >= rule.for_seconds:
                    where = "" if gpu is None else f", GPU {gpu}"
                    message = f"{rule.name}{where}: {rule.summary} ({value:g})"
                    firing.append(
                        Alert(
                            rule=rule.name, severity=rule.severity, gpu=gpu, value=value, since=begin, message=message
                        )
                    )
        self.since = holding
        return tuple(firing)


Found = Iterator[tuple[int | None, float]]
Condition = Callable[[Snapshot, float | None], Found]


def _of_gpus(
    value: Callable[[GPU], float | None], holds: Callable[[float, float], bool], fixed: float | None = None
) -> Condition:
    """A condition of each GPU's value and the threshold."""

    def condition(snapshot: Snapshot, threshold: float | None) -> Found:
        limit = fixed if fixed is not None else threshold
        for gpu in snapshot.gpus:
            reading = value(gpu)
            if reading is not None and limit is not None and holds(reading, limit):
                yield gpu.index, float(reading)

    return condition


def _used(gpu: GPU) -> float | None:
    if gpu.memory_used_bytes is None or not gpu.memory_total_bytes:
        return None
    return gpu.memory_used_bytes / gpu.memory_total_bytes


def _bad_loss(snapshot: Snapshot, _: float | None) -> Found:
    loss = snapshot.metrics.get("loss")
    if loss is not None and not math.isfinite(loss):
        yield None, loss


def _stalled(snapshot: Snapshot, threshold: float | None) -> Found:
    if snapshot.step_time is not None and threshold is not None:
        waited = snapshot.time - snapshot.step_time
        if waited > threshold:
            yield None, waited


_CONDITIONS: dict[str, Condition] = {
    "GpuHot": _of_gpus(operator.attrgetter("temperature_celsius"), operator.gt),
    "GpuThrottled": _of_gpus(
        lambda gpu: float(any(why in SLOWED_BY for why in gpu.throttle_reasons or ())), operator.gt, 0
    ),
    "GpuMemoryNearlyFull": _of_gpus(_used, operator.gt),
    "GpuUnderused": _of_gpus(operator.attrgetter("utilization_ratio"), operator.lt),
    "GpuErrors": _of_gpus(lambda gpu: sum(filter(None, (gpu.ecc_errors, gpu.xid_errors))), operator.gt, 0),
    "GpuLost": _of_gpus(lambda gpu: float(not gpu.up), operator.gt, 0),
    "LossNotFinite": _bad_loss,
    "TrainingStalled": _stalled,
}
