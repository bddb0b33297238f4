"""A condition is a function of a threshold that gives a function of a snapshot."""

import math

from labkit.monitoring import RULES, SLOWED_BY, Alert


def _each(value):
    return lambda limit: (
        lambda seen: [(gpu.index, found) for gpu in seen.gpus if (found := value(gpu, limit)) is not None]
    )


def _hot(gpu, limit):
    celsius = gpu.temperature_celsius
    return None if celsius is None or celsius <= limit else celsius


def _full(gpu, limit):
    if None in (gpu.memory_used_bytes, gpu.memory_total_bytes) or not gpu.memory_total_bytes:
        return None
    share = gpu.memory_used_bytes / gpu.memory_total_bytes
    return share if share > limit else None


def _idle(gpu, limit):
    share = gpu.utilization_ratio
    return None if share is None or not share < limit else share


def _failing(gpu, _):
    count = sum(number for number in (gpu.ecc_errors, gpu.xid_errors) if number)
    return float(count) or None


CONDITIONS = {
    "GpuHot": _each(_hot),
    "GpuThrottled": _each(lambda gpu, _: 1.0 if any(r in SLOWED_BY for r in gpu.throttle_reasons or ()) else None),
    "GpuMemoryNearlyFull": _each(_full),
    "GpuUnderused": _each(_idle),
    "GpuErrors": _each(_failing),
    "GpuLost": _each(lambda gpu, _: None if gpu.up else 1.0),
    "LossNotFinite": lambda _: (
        lambda seen: [
            (None, loss) for loss in [seen.metrics.get("loss")] if loss is not None and not math.isfinite(loss)
        ]
    ),
    "TrainingStalled": lambda limit: (
        lambda seen: [
            (None, seen.time - then) for then in [seen.step_time] if then is not None and seen.time - then > limit
        ]
    ),
}


def watcher(rule):
    """A function that says, snapshot by snapshot, which alerts of one rule fire."""
    if rule.name not in CONDITIONS:

        def refuse(_):
            raise ValueError(f"nobody knows {rule.name}")

        return refuse
    broken, began = CONDITIONS[rule.name](rule.threshold), {}

    def watch(seen):
        now = dict(broken(seen))
        for gpu in set(began) - set(now):
            del began[gpu]
        for gpu, value in now.items():
            since = began.setdefault(gpu, seen.time)
            if seen.time - since >= rule.for_seconds:
                where = "" if gpu is None else f", GPU{gpu}"
                yield Alert(
                    rule=rule.name,
                    severity=rule.severity,
                    gpu=gpu,
                    value=value,
                    since=since,
                    message=f"{rule.name}{where}: {rule.summary}",
                )

    return watch


class AlertEngine:
    def __init__(self, rules=RULES):
        watchers = [watcher(rule) for rule in rules]
        self.evaluate = lambda snapshot: tuple(alert for watch in watchers for alert in watch(snapshot))
