"""Task 5.3."""

from collections.abc import Sequence
from math import isfinite

from labkit.monitoring import RULES, SLOWED_BY, Alert, Rule, Snapshot

NAN = float("nan")  # compares with nothing


def number(x):
    return NAN if x is None else x


GPU = {
    "GpuHot": lambda g, t: (v := number(g.temperature_celsius), v > number(t)),
    "GpuThrottled": lambda g, t: (1.0, any(r in SLOWED_BY for r in g.throttle_reasons or ())),
    "GpuMemoryNearlyFull": lambda g, t: (
        v := number(g.memory_used_bytes) / (g.memory_total_bytes or NAN),
        v > number(t),
    ),
    "GpuUnderused": lambda g, t: (v := number(g.utilization_ratio), v < number(t)),
    "GpuErrors": lambda g, t: (v := (g.ecc_errors or 0) + (g.xid_errors or 0), v > 0),
    "GpuLost": lambda g, t: (1.0, not g.up),
}
TRAINING = {
    "LossNotFinite": lambda s, t: (v := s.metrics.get("loss", 0.0), not isfinite(v)),
    "TrainingStalled": lambda s, t: (v := s.time - number(s.step_time), v > number(t)),
}


class AlertEngine:
    """Few words."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)
        self.since: dict[tuple[str, int | None], float] = {}

    def evaluate(self, snapshot: Snapshot) -> tuple[Alert, ...]:
        """Few words."""
        if bad := {r.name for r in self.rules} - GPU.keys() - TRAINING.keys():
            raise ValueError(bad)
        found = [
            (r, i, v)
            for r in self.rules
            for i, (v, holds) in (
                [(g.index, GPU[r.name](g, r.threshold)) for g in snapshot.gpus]
                if r.name in GPU
                else [(None, TRAINING[r.name](snapshot, r.threshold))]
            )
            if holds
        ]
        [self.since.setdefault((r.name, i), snapshot.time) for r, i, _ in found]
        [self.since.pop(k) for k in self.since.keys() - {(r.name, i) for r, i, _ in found}]
        return tuple(
            Alert(
                rule=r.name,
                severity=r.severity,
                gpu=i,
                value=v,
                since=self.since[r.name, i],
                message=r.name + (f" GPU {i}" if i is not None else "") + f" {v:.4g} " + r.summary,
            )
            for r, i, v in found
            if snapshot.time - self.since[r.name, i] >= r.for_seconds
        )
