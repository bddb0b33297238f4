"""Task 5.5: find out, inside the training, which rules are broken for long enough to tell somebody.

Not for the rules (`labkit.monitoring.rules`), which Prometheus evaluates in the same way from outside: a program that
hangs or is gone cannot raise an alert.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from labkit.monitoring import RULES, SLOWED_BY, Alert, GpuReading, Rule, Snapshot

Held = tuple[int | None, float]
"""GPU and value of a condition that holds."""
Condition = Callable[[Rule, Snapshot], Iterator[Held]]


def _each_gpu(value_of: Callable[[Rule, GpuReading], float | None]) -> Condition:
    def condition(rule: Rule, snapshot: Snapshot) -> Iterator[Held]:
        for gpu in snapshot.gpus:
            if (value := value_of(rule, gpu)) is not None:
                yield gpu.index, value

    return condition


def _above(value: float | None, limit: float | None) -> float | None:
    return value if value is not None and limit is not None and value > limit else None


def _below(value: float | None, limit: float | None) -> float | None:
    return value if value is not None and limit is not None and value < limit else None


def _full(rule: Rule, gpu: GpuReading) -> float | None:
    if gpu.memory_used_bytes is None or not gpu.memory_total_bytes:
        return None
    return _above(gpu.memory_used_bytes / gpu.memory_total_bytes, rule.threshold)


def _slowed(rule: Rule, gpu: GpuReading) -> float | None:
    return 1.0 if set(SLOWED_BY).intersection(gpu.throttle_reasons or ()) else None


def _not_finite(rule: Rule, snapshot: Snapshot) -> Iterator[Held]:
    loss = snapshot.metrics.get("loss")
    if loss is not None and not math.isfinite(loss):
        yield None, loss


def _stalled(rule: Rule, snapshot: Snapshot) -> Iterator[Held]:
    if snapshot.step_time is not None:
        seconds = _above(snapshot.time - snapshot.step_time, rule.threshold)
        if seconds is not None:
            yield None, seconds


CONDITIONS: dict[str, Condition] = {
    "GpuHot": _each_gpu(lambda rule, gpu: _above(gpu.temperature_celsius, rule.threshold)),
    "GpuThrottled": _each_gpu(_slowed),
    "GpuMemoryNearlyFull": _each_gpu(_full),
    "GpuUnderused": _each_gpu(lambda rule, gpu: _below(gpu.utilization_ratio, rule.threshold)),
    "GpuErrors": _each_gpu(lambda rule, gpu: _above((gpu.ecc_errors or 0) + (gpu.xid_errors or 0), 0)),
    "GpuLost": _each_gpu(lambda rule, gpu: None if gpu.up else 1.0),
    "LossNotFinite": _not_finite,
    "TrainingStalled": _stalled,
}


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
        self._rows: dict[tuple[int, int | None], float] = {}  # by the rule's place: two may share a name
        self.since: dict[tuple[str, int | None], float] = {}
        """Given: room for when the condition of a rule began to hold, by rule's name and GPU."""

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
        for rule in self.rules:
            if rule.name not in CONDITIONS:
                raise ValueError(f"there is no rule {rule.name!r}; there are {', '.join(CONDITIONS)}")
        held: dict[tuple[int, int | None], float] = {}
        fired: list[Alert] = []
        for place, rule in enumerate(self.rules):
            for gpu, value in CONDITIONS[rule.name](rule, snapshot):
                since = held[place, gpu] = self._rows.get((place, gpu), snapshot.time)
                if snapshot.time - since >= rule.for_seconds:
                    about = "" if gpu is None else f"GPU {gpu}: "
                    fired.append(
                        Alert(
                            rule=rule.name, severity=rule.severity, gpu=gpu, value=value, since=since,
                            message=f"{rule.name}: {about}{rule.summary} ({value:g})",
                        )
                    )  # fmt: skip
        self._rows = held
        self.since = {(self.rules[place].name, gpu): since for (place, gpu), since in held.items()}
        return tuple(fired)
