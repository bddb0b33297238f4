"""One watch per rule, which remembers for each of its subjects since when it misbehaves."""

from math import isfinite

from labkit.monitoring import RULES, SLOWED_BY, Alert


def _hot(gpu, limit):
    if gpu.temperature_celsius is not None and gpu.temperature_celsius > limit:
        return gpu.temperature_celsius
    return None


def _throttled(gpu, _):
    if gpu.throttle_reasons is None:
        return None
    return 1.0 if any(reason in SLOWED_BY for reason in gpu.throttle_reasons) else None


def _full(gpu, limit):
    if None in (gpu.memory_used_bytes, gpu.memory_total_bytes) or gpu.memory_total_bytes == 0:
        return None
    share = gpu.memory_used_bytes / gpu.memory_total_bytes
    return share if share > limit else None


def _underused(gpu, limit):
    if gpu.utilization_ratio is None or gpu.utilization_ratio >= limit:
        return None
    return gpu.utilization_ratio


def _errors(gpu, _):
    count = sum(errors for errors in (gpu.ecc_errors, gpu.xid_errors) if errors is not None)
    return float(count) if count > 0 else None


def _lost(gpu, _):
    return None if gpu.up else 1.0


def _loss(snapshot, _):
    loss = snapshot.metrics.get("loss")
    return None if loss is None or isfinite(loss) else loss


def _stalled(snapshot, limit):
    if snapshot.step_time is None:
        return None
    waited = snapshot.time - snapshot.step_time
    return waited if waited > limit else None


PER_GPU = {
    "GpuHot": _hot,
    "GpuThrottled": _throttled,
    "GpuMemoryNearlyFull": _full,
    "GpuUnderused": _underused,
    "GpuErrors": _errors,
    "GpuLost": _lost,
}
PER_TRAINING = {"LossNotFinite": _loss, "TrainingStalled": _stalled}


class _Watch:
    def __init__(self, rule):
        self.rule = rule
        self.begun = {}

    def look(self, snapshot):
        name = self.rule.name
        if name in PER_GPU:
            subjects = [(gpu.index, PER_GPU[name](gpu, self.rule.threshold)) for gpu in snapshot.gpus]
        elif name in PER_TRAINING:
            subjects = [(None, PER_TRAINING[name](snapshot, self.rule.threshold))]
        else:
            raise ValueError(f"unknown rule {name}")
        present = {gpu for gpu, value in subjects if value is not None}
        for gone in set(self.begun) - present:
            del self.begun[gone]
        for gpu, value in sorted(subjects, key=lambda subject: -1 if subject[0] is None else subject[0]):
            if value is None:
                continue
            self.begun.setdefault(gpu, snapshot.time)
            if snapshot.time - self.begun[gpu] >= self.rule.for_seconds:
                yield self._alert(gpu, value)

    def _alert(self, gpu, value):
        where = "the training" if gpu is None else f"GPU {gpu}"
        text = f"{self.rule.name}: {where} at {value:g}. {self.rule.summary}"
        begun = self.begun[gpu]
        return Alert(rule=self.rule.name, severity=self.rule.severity, gpu=gpu, value=value, since=begun, message=text)


class AlertEngine:
    def __init__(self, rules=RULES):
        self.watches = [_Watch(rule) for rule in rules]

    def evaluate(self, snapshot):
        return tuple(alert for watch in self.watches for alert in watch.look(snapshot))
