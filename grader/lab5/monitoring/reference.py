"""The alerts that follow from a row of snapshots, by the rules of labkit's documentation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grader.lab5.monitoring.cases import ReadingCase, RuleChange, SnapshotCase
from grader.lab5.monitoring.cases.drawn import HOT, SLOWED_BY, WAITS

SEVERITIES = {
    "GpuHot": "warning",
    "GpuThrottled": "warning",
    "GpuMemoryNearlyFull": "warning",
    "GpuUnderused": "info",
    "GpuErrors": "critical",
    "GpuLost": "critical",
    "LossNotFinite": "critical",
    "TrainingStalled": "critical",
}
_THRESHOLDS = {"GpuHot": float(HOT), "GpuMemoryNearlyFull": 0.95, "GpuUnderused": 0.5, "TrainingStalled": 300.0}
"""Of the rules that compare with something."""


@dataclass(frozen=True)
class ExpectedAlert:
    """An alert that must fire."""

    rule: str
    gpu: int | None
    since: float
    value: float

    @property
    def key(self) -> list[object]:
        """What it is about."""
        return [self.rule, self.gpu]


def expected_alerts(rules: Mapping[str, RuleChange], snapshots: Sequence[SnapshotCase]) -> list[list[ExpectedAlert]]:
    """The alerts at each snapshot."""
    since: dict[tuple[str, int | None], float] = {}
    expected = []
    for snapshot in snapshots:
        firing = []
        for name, usual_wait in WAITS.items():
            limit = rules.get(name, {}).get("threshold", _THRESHOLDS.get(name, 0.0))
            wait = rules.get(name, {}).get("for_seconds", usual_wait)
            values = _broken(name, limit, snapshot)
            for key in [key for key in since if key[0] == name and key[1] not in values]:
                del since[key]
            for index, value in values.items():
                begun = since.setdefault((name, index), snapshot["time"])
                if snapshot["time"] - begun >= wait:
                    firing.append(ExpectedAlert(name, index, begun, value))
        expected.append(firing)
    return expected


def _broken(name: str, limit: float, snapshot: SnapshotCase) -> dict[int | None, float]:
    """For which GPUs, or None for the training, a rule's condition holds, and the value that it compares."""
    if name == "LossNotFinite":
        loss = float(snapshot.get("metrics", {}).get("loss", 0.0))
        return {} if math.isfinite(loss) else {None: loss}
    if name == "TrainingStalled":
        last = snapshot.get("step_time")
        waited = 0.0 if last is None else snapshot["time"] - last
        return {None: waited} if waited > limit else {}
    values: dict[int | None, float] = {}
    for reading in snapshot.get("gpus", []):
        value = _value(name, limit, reading)
        if value is not None:
            values[reading["index"]] = value
    return values


def _value(name: str, limit: float, reading: ReadingCase) -> float | None:
    """What breaks a rule on one GPU; None where nothing does."""
    if name == "GpuLost":
        return None if reading.get("up", True) else 1.0
    if name == "GpuThrottled":
        return 1.0 if set(SLOWED_BY) & set(reading.get("throttle_reasons") or ()) else None
    if name == "GpuUnderused":
        share = reading.get("utilization_ratio")
        return share if share is not None and share < limit else None
    if name == "GpuErrors":
        value: float = (reading.get("ecc_errors") or 0) + (reading.get("xid_errors") or 0)
    elif name == "GpuMemoryNearlyFull":
        used, total = reading.get("memory_used_bytes"), reading.get("memory_total_bytes")
        value = used / total if used is not None and total else 0.0
    else:
        value = reading.get("temperature_celsius") or 0.0
    return float(value) if value > limit else None
