"""Task 5.5: find out, inside the training, which rules are broken for long enough to tell somebody.

Not for the rules (`labkit.monitoring.rules`), which Prometheus evaluates in the same way from outside: a program that
hangs or is gone cannot raise an alert.
"""

import math
from collections.abc import Sequence

from labkit.monitoring import RULES, SLOWED_BY, Alert, Rule, Snapshot

GPU_RULES = ("GpuHot", "GpuThrottled", "GpuMemoryNearlyFull", "GpuUnderused", "GpuErrors", "GpuLost")


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
        alerts = []
        holding = {}
        for place, rule in enumerate(self.rules):
            limit = rule.threshold
            found: list[tuple[int | None, float]] = []
            if rule.name == "LossNotFinite":
                if "loss" in snapshot.metrics and not math.isfinite(snapshot.metrics["loss"]):
                    found.append((None, snapshot.metrics["loss"]))
            elif rule.name == "TrainingStalled":
                if snapshot.step_time is not None and snapshot.time - snapshot.step_time > limit:
                    found.append((None, snapshot.time - snapshot.step_time))
            elif rule.name not in GPU_RULES:
                raise ValueError(f"nobody knows how to evaluate a rule {rule.name!r}")
            else:
                for gpu in snapshot.gpus:
                    value = None
                    if rule.name == "GpuHot":
                        if gpu.temperature_celsius is not None and gpu.temperature_celsius > limit:
                            value = gpu.temperature_celsius
                    elif rule.name == "GpuThrottled":
                        if gpu.throttle_reasons is not None and any(each in SLOWED_BY for each in gpu.throttle_reasons):
                            value = 1.0
                    elif rule.name == "GpuMemoryNearlyFull":
                        if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
                            share = gpu.memory_used_bytes / gpu.memory_total_bytes
                            value = share if share > limit else None
                    elif rule.name == "GpuUnderused":
                        if gpu.utilization_ratio is not None and gpu.utilization_ratio < limit:
                            value = gpu.utilization_ratio
                    elif rule.name == "GpuErrors":
                        errors = sum(each for each in (gpu.ecc_errors, gpu.xid_errors) if each is not None)
                        value = errors if errors > 0 else None
                    elif rule.name == "GpuLost":
                        value = None if gpu.up else 1.0
                    if value is not None:
                        found.append((gpu.index, value))
            for gpu_index, value in found:
                key = (f"{place}:{rule.name}", gpu_index)
                holding[key] = self.since.get(key, snapshot.time)
                if snapshot.time - holding[key] < rule.for_seconds:
                    continue
                message = rule.name if gpu_index is None else f"{rule.name} on GPU {gpu_index}"
                alerts.append(
                    Alert(
                        rule=rule.name,
                        severity=rule.severity,
                        gpu=gpu_index,
                        value=float(value),
                        since=holding[key],
                        message=f"{message} (at {value:.4g}): {rule.summary}",
                    )
                )
        self.since = holding
        return tuple(alerts)
