"""Task 5.3: conditions are functions that functions make."""

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, gt, lt
from typing import Any

from labkit.monitoring import RULES, SLOWED_BY, Alert, GpuReading, Rule, Snapshot

Finding = tuple[int | None, float]
Condition = Callable[[Snapshot, float | None], Iterable[Finding]]


def _of_each_gpu(value: Callable[[GpuReading], Any], compare: Callable[[Any, Any], bool], limit: float | None = None):
    """A condition on what `value` says of a GPU, unless that is None; without a limit the threshold is one."""

    def condition(snapshot: Snapshot, threshold: float | None) -> list[Finding]:
        values = ((gpu.index, value(gpu)) for gpu in snapshot.gpus)
        against = threshold if limit is None else limit
        return [(index, float(each)) for index, each in values if each is not None and compare(each, against)]

    return condition


def _share(part: str, whole: str) -> Callable[[GpuReading], float | None]:
    def share(gpu: GpuReading) -> float | None:
        try:
            return getattr(gpu, part) / getattr(gpu, whole)
        except (TypeError, ZeroDivisionError):
            return None

    return share


def _total(*names: str) -> Callable[[GpuReading], int]:
    return lambda gpu: sum(getattr(gpu, name) for name in names if getattr(gpu, name) is not None)


def _any_of(name: str, wanted: Iterable[str]) -> Callable[[GpuReading], float]:
    return lambda gpu: float(any(each in wanted for each in getattr(gpu, name) or ()))


def _not_finite(metric: str) -> Condition:
    def condition(snapshot: Snapshot, threshold: float | None) -> list[Finding]:
        values = [value for name, value in snapshot.metrics.items() if name == metric]
        return [(None, value) for value in values if not math.isfinite(value)]

    return condition


def _since(moment: Callable[[Snapshot], float | None]) -> Condition:
    def condition(snapshot: Snapshot, threshold: float | None) -> list[Finding]:
        begun = moment(snapshot)
        passed = 0.0 if begun is None else snapshot.time - begun
        return [(None, passed)] if begun is not None and passed > threshold else []

    return condition


CONDITIONS: dict[str, Condition] = {
    "GpuHot": _of_each_gpu(attrgetter("temperature_celsius"), gt),
    "GpuThrottled": _of_each_gpu(_any_of("throttle_reasons", SLOWED_BY), gt, 0),
    "GpuMemoryNearlyFull": _of_each_gpu(_share("memory_used_bytes", "memory_total_bytes"), gt),
    "GpuUnderused": _of_each_gpu(attrgetter("utilization_ratio"), lt),
    "GpuErrors": _of_each_gpu(_total("ecc_errors", "xid_errors"), gt, 0),
    "GpuLost": _of_each_gpu(lambda gpu: 1.0 - gpu.up, gt, 0),
    "LossNotFinite": _not_finite("loss"),
    "TrainingStalled": _since(attrgetter("step_time")),
}


class AlertEngine:
    """See the lab."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)
        self.since: dict[tuple[str, int | None], float] = {}

    def evaluate(self, snapshot: Snapshot) -> tuple[Alert, ...]:
        """Forgets by rebuilding."""
        before, self.since = self.since, {}

        def begun(rule: Rule, gpu: int | None) -> float:
            key = (rule.name, gpu)
            return self.since.setdefault(key, before.get(key, snapshot.time))

        def alert(rule: Rule, gpu: int | None, value: float) -> Alert:
            where = f", GPU {gpu}" if gpu is not None else ""
            return Alert(
                rule=rule.name, severity=rule.severity, gpu=gpu, value=value, since=begun(rule, gpu),
                message=f"{rule.name}{where}: {rule.summary}",
            )  # fmt: skip

        def condition(rule: Rule) -> Condition:
            try:
                return CONDITIONS[rule.name]
            except KeyError:
                raise ValueError(f"unknown rule {rule.name}") from None

        return tuple(
            alert(rule, gpu, value)
            for rule in self.rules
            for gpu, value in condition(rule)(snapshot, rule.threshold)
            if snapshot.time - begun(rule, gpu) >= rule.for_seconds
        )
