"""Task 5.3: a watch for each rule and GPU, a coroutine that is sent what it watches and says whether it fires."""

import math
from collections.abc import Callable, Generator, Sequence

from labkit.monitoring import RULES, SLOWED_BY, Alert, Rule, Snapshot

Broken = dict[int | None, float]


class Condition:
    """For whom a rule is broken: subclasses say it."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.threshold = rule, math.nan if rule.threshold is None else rule.threshold

    def broken(self, snapshot: Snapshot) -> Broken:
        raise NotImplementedError


class OfAGpu(Condition):
    """Of what is measured of a GPU."""

    measured: Callable[..., float | None]
    above = True

    def broken(self, snapshot: Snapshot) -> Broken:
        values = [(gpu.index, type(self).measured(gpu)) for gpu in snapshot.gpus]
        return {
            index: value
            for index, value in values
            if value is not None and (value > self.threshold if self.above else value < self.threshold)
        }


class GpuHot(OfAGpu):
    def measured(self):
        return self.temperature_celsius


class GpuMemoryNearlyFull(OfAGpu):
    @staticmethod
    def measured(gpu):
        used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
        return None if used is None or not total else used / total


class GpuUnderused(OfAGpu):
    def measured(self):
        return self.utilization_ratio

    above = False


class _Flag(OfAGpu):
    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.threshold = 0.0


class GpuThrottled(_Flag):
    def measured(self):
        return 1.0 if not frozenset(SLOWED_BY).isdisjoint(self.throttle_reasons or ()) else None


class GpuErrors(_Flag):
    def measured(self):
        return sum(filter(None, (self.ecc_errors, self.xid_errors)))


class GpuLost(_Flag):
    def measured(self):
        return float(not self.up)


class LossNotFinite(Condition):
    def broken(self, snapshot: Snapshot) -> Broken:
        loss = snapshot.metrics.get("loss")
        return {} if loss is None or math.isfinite(loss) else {None: loss}


class TrainingStalled(Condition):
    def broken(self, snapshot: Snapshot) -> Broken:
        if snapshot.step_time is None:
            return {}
        silent = snapshot.time - snapshot.step_time
        return {None: silent} if silent > self.threshold else {}


KINDS = {
    kind.__name__: kind
    for kind in (
        GpuHot,
        GpuThrottled,
        GpuMemoryNearlyFull,
        GpuUnderused,
        GpuErrors,
        GpuLost,
        LossNotFinite,
        TrainingStalled,
    )
}


def watch(rule: Rule, gpu: int | None) -> Generator[Alert | None, tuple[float, float | None], None]:
    """Is sent (time, value), None for a condition that does not hold; yields an alert, or None."""
    alert = None
    since = None
    whose = "" if gpu is None else f" (GPU {gpu})"
    while True:
        now, value = yield alert
        since = None if value is None else now if since is None else since
        alert = None
        if value is not None and now - since >= rule.for_seconds:
            alert = Alert(
                rule=rule.name,
                severity=rule.severity,
                gpu=gpu,
                value=float(value),
                since=since,
                message=f"{rule.name}{whose}: {rule.summary}",
            )


class AlertEngine:
    """Sends each watch what it watches."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)
        self.since: dict[tuple[str, int | None], float] = {}
        self._watches: dict[tuple[str, int | None], Generator[Alert | None, tuple[float, float | None], None]] = {}

    def evaluate(self, snapshot: Snapshot) -> tuple[Alert, ...]:
        """See the lab."""
        alerts = []
        for rule in self.rules:
            if rule.name not in KINDS:
                raise ValueError(f"{rule.name} is not among {', '.join(KINDS)}")
            broken = KINDS[rule.name](rule).broken(snapshot)
            known = [gpu for name, gpu in self._watches if name == rule.name]
            for gpu in [*broken, *(gpu for gpu in known if gpu not in broken)]:
                if (rule.name, gpu) not in self._watches:
                    self._watches[rule.name, gpu] = watch(rule, gpu)
                    next(self._watches[rule.name, gpu])
                alerts.append(self._watches[rule.name, gpu].send((snapshot.time, broken.get(gpu))))
        return tuple(alert for alert in alerts if alert is not None)
