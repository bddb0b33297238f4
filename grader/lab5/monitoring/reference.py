"""The alerts that follow from a row of snapshots, by the rules of labkit's documentation, or by a common mistake."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grader.lab5.monitoring.cases import ReadingCase, RuleChange, SnapshotCase
from grader.lab5.monitoring.cases.drawn import SLOWED_BY, THRESHOLDS, WAITS

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


CONDITION_MISTAKES = (
    "limit_counts",
    "limit_counts, also of errors",
    "idle_if_absent",
    "power_cap_counts",
    "any_reason_counts",
    "only_nan",
    "one_missing_skips_gpu",
    "only_gpu_0",
)
"""Of the conditions. With "limit_counts" a value at the limit breaks a rule; errors have the limit 0."""
WAITING_MISTAKES = ("never_waits", "row_survives_break", "row_by_rule")
"""Of how long a condition has to hold. With "row_survives_break" a row goes on after a snapshot without it, with
"row_by_rule" all GPUs have one row."""
REPORT_MISTAKES = ("every_time", "once_ever", "by_rule_alone")
"""Of what a monitor reports of the alerts that fire."""

Key: TypeAlias = tuple[str, int | None]
"""A rule, and a GPU or None."""


def expected_alerts(
    rules: Mapping[str, RuleChange],
    snapshots: Sequence[SnapshotCase],
    mistake: str = "",
    holding: Sequence[Collection[Key]] | None = None,
) -> list[list[ExpectedAlert]]:
    """The alerts at each snapshot.

    Args:
        rules: what differs from labkit's, by name.
        snapshots: in the order in which they are evaluated.
        mistake: one of `CONDITION_MISTAKES` or `WAITING_MISTAKES`, or none.
        holding: for which keys a condition holds at each snapshot, if the rules are not to say that. The values of
            alerts are those that the rules give, or NaN.
    """
    since: dict[tuple[str, int | None], float] = {}
    expected = []
    for place, snapshot in enumerate(snapshots):
        firing = []
        for name, usual_wait in WAITS.items():
            limit = rules.get(name, {}).get("threshold", THRESHOLDS.get(name, 0.0))
            wait = rules.get(name, {}).get("for_seconds", usual_wait)
            values = _broken(name, limit, snapshot, mistake)
            if holding is not None:
                values = {gpu: values.get(gpu, math.nan) for rule, gpu in holding[place] if rule == name}
            rows = {index: None if mistake == "row_by_rule" else index for index in values}
            for key in [key for key in since if key[0] == name and key[1] not in rows.values()]:
                if mistake != "row_survives_break":
                    del since[key]
            for index, value in values.items():
                begun = since.setdefault((name, rows[index]), snapshot["time"])
                if snapshot["time"] - begun >= wait or mistake == "never_waits":
                    firing.append(ExpectedAlert(name, index, begun, value))
        expected.append(firing)
    return expected


def expected_reports(conditions: Sequence[Collection[Key]], mistake: str = "") -> list[list[object]]:
    """Rule and GPU of each alert that a monitor hands to `on_alert`, if these fire one after the other.

    Args:
        conditions: what fires each time that the alerts are evaluated, in the order of the rules, then of the GPUs.
        mistake: one of `REPORT_MISTAKES`, or none.
    """
    reported: list[list[object]] = []
    before: set[Key] = set()
    for firing in conditions:
        names = {rule for rule, _ in before}
        for key in firing:
            known = key[0] in names if mistake == "by_rule_alone" else key in before
            if not known or mistake == "every_time":
                reported.append(list(key))
        before = before | set(firing) if mistake == "once_ever" else set(firing)
    return reported


def _broken(name: str, limit: float, snapshot: SnapshotCase, mistake: str) -> dict[int | None, float]:
    """For which GPUs, or None for the training, a rule's condition holds, and the value that it compares."""
    if name == "LossNotFinite":
        loss = float(snapshot.get("metrics", {}).get("loss", 0.0))
        return {None: loss} if math.isnan(loss) or (math.isinf(loss) and mistake != "only_nan") else {}
    if name == "TrainingStalled":
        last = snapshot.get("step_time")
        waited = None if last is None else snapshot["time"] - last
        return {None: waited} if waited is not None and _above(waited, limit, mistake) else {}
    values: dict[int | None, float] = {}
    for reading in snapshot.get("gpus", []):
        value = _value(name, limit, reading, mistake)
        if value is not None and (mistake != "only_gpu_0" or reading["index"] == 0):
            values[reading["index"]] = value
    return values


def _above(value: float, limit: float, mistake: str) -> bool:
    return value > limit or (value == limit and mistake.startswith("limit_counts"))


def _value(name: str, limit: float, reading: ReadingCase, mistake: str) -> float | None:
    """What breaks a rule on one GPU; None if nothing does."""
    usual = (reading.get("temperature_celsius"), reading.get("utilization_ratio"), reading.get("memory_used_bytes"))
    if mistake == "one_missing_skips_gpu" and reading.get("up", True) and None in usual:
        return None
    if name == "GpuLost":
        return None if reading.get("up", True) else 1.0
    if name == "GpuThrottled":
        reasons = set(reading.get("throttle_reasons") or ())
        if mistake == "power_cap_counts":
            return 1.0 if reasons - {"idle"} else None
        return 1.0 if reasons and (mistake == "any_reason_counts" or reasons & set(SLOWED_BY)) else None
    if name == "GpuUnderused":
        share = reading.get("utilization_ratio")
        if share is None and mistake == "idle_if_absent":
            share = 0.0
        return share if share is not None and share < limit else None
    if name == "GpuErrors":
        value: float = (reading.get("ecc_errors") or 0) + (reading.get("xid_errors") or 0)
        return float(value) if value > limit or (value == limit and mistake.endswith("also of errors")) else None
    if name == "GpuMemoryNearlyFull":
        used, total = reading.get("memory_used_bytes"), reading.get("memory_total_bytes")
        value = used / total if used is not None and total else 0.0
    else:
        value = reading.get("temperature_celsius") or 0.0
    return float(value) if _above(value, limit, mistake) else None
