"""Task 5.3: each rule has a state machine per subject, which is idle, waits or fires."""

import math
from collections.abc import Callable, Iterator, Sequence

from labkit.monitoring import RULES, SLOWED_BY, Alert, GpuReading, Rule, Snapshot

Finding = tuple[int | None, float]


def _of_gpus(condition: Callable[[GpuReading, Rule], float | None]) -> Callable[[Snapshot, Rule], Iterator[Finding]]:
    def find(snapshot: Snapshot, rule: Rule) -> Iterator[Finding]:
        for gpu in snapshot.gpus:
            value = condition(gpu, rule)
            if value is not None:
                yield gpu.index, value

    return find


@_of_gpus
def _hot(gpu: GpuReading, rule: Rule) -> float | None:
    degrees = gpu.temperature_celsius
    return degrees if degrees is not None and degrees > rule.threshold else None


@_of_gpus
def _throttled(gpu: GpuReading, rule: Rule) -> float | None:
    return 1.0 if set(gpu.throttle_reasons or ()).intersection(SLOWED_BY) else None


@_of_gpus
def _full(gpu: GpuReading, rule: Rule) -> float | None:
    if None in (gpu.memory_used_bytes, gpu.memory_total_bytes):
        return None
    ratio = gpu.memory_used_bytes / gpu.memory_total_bytes
    return ratio if ratio > rule.threshold else None


@_of_gpus
def _underused(gpu: GpuReading, rule: Rule) -> float | None:
    ratio = gpu.utilization_ratio
    return None if ratio is None or not ratio < rule.threshold else ratio


@_of_gpus
def _errors(gpu: GpuReading, rule: Rule) -> float | None:
    return (gpu.ecc_errors or 0) + (gpu.xid_errors or 0) or None


@_of_gpus
def _lost(gpu: GpuReading, rule: Rule) -> float | None:
    return None if gpu.up else 1.0


def _not_finite(snapshot: Snapshot, rule: Rule) -> Iterator[Finding]:
    loss = snapshot.metrics.get("loss", 0.0)
    if not math.isfinite(loss):
        yield None, loss


def _stalled(snapshot: Snapshot, rule: Rule) -> Iterator[Finding]:
    if snapshot.step_time is not None and (silent := snapshot.time - snapshot.step_time) > rule.threshold:
        yield None, silent


CONDITIONS = {
    "GpuHot": _hot,
    "GpuThrottled": _throttled,
    "GpuMemoryNearlyFull": _full,
    "GpuUnderused": _underused,
    "GpuErrors": _errors,
    "GpuLost": _lost,
    "LossNotFinite": _not_finite,
    "TrainingStalled": _stalled,
}


class AlertEngine:
    """See the lab."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)
        self.since: dict[tuple[str, int | None], float] = {}

    def evaluate(self, snapshot: Snapshot) -> tuple[Alert, ...]:
        """All rules first; then what changed; then what fires."""
        unknown = [rule.name for rule in self.rules if rule.name not in CONDITIONS]
        if unknown:
            raise ValueError(f"no such rule: {', '.join(unknown)}")
        broken = {
            (rule.name, gpu): (rule, value)
            for rule in self.rules
            for gpu, value in CONDITIONS[rule.name](snapshot, rule)
        }
        self.since = {key: self.since.get(key, snapshot.time) for key in broken}
        return tuple(
            Alert(
                rule=name,
                severity=rule.severity,
                gpu=gpu,
                value=float(value),
                since=self.since[name, gpu],
                message=" ".join([f"{name}:", *([] if gpu is None else [f"GPU {gpu}:"]), rule.summary]),
            )
            for (name, gpu), (rule, value) in broken.items()
            if self.since[name, gpu] <= snapshot.time - rule.for_seconds
        )
