"""The same readings, minute by minute, for the engine in the training and for Prometheus' own rule tester."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.monitoring import RULES, GpuReading, Snapshot, prometheus_rules
from labkit.monitoring.exports import prometheus_metrics
from labkit.monitoring.nvml import THROTTLE_REASONS
from solutions.lab5_production.alerts import AlertEngine
from tests.monitoring.conftest import BUSY

STEP_SECONDS = 10
NAN, INFINITE = float("nan"), float("inf")

# For each case: what GPU 0 says at every tenth second (a list per field), or what the training logged.
CASES: dict[str, dict[str, Sequence[object]]] = {
    "hot": {"temperature_celsius": [60, *[86] * 6, 85, *[90] * 9, None, *[90] * 8, 70]},
    "throttled": {"throttle_reasons": [(), ("power_cap",), *[("power_brake",)] * 3, *[("thermal_slowdown",)] * 4, ()]},
    "full": {"memory_used_bytes": [1, *[15.5 * 2**30] * 8, 15 * 2**30]},
    "underused": {"utilization_ratio": [0.9, *[0.1] * 32, 0.5, 0.4]},
    "errors": {"ecc_errors": [0, 0, 1, 1], "xid_errors": [0, 0, 0, 2]},
    "lost": {"up": [True, True, False, False, True]},
    "loss": {"loss": [2.0, NAN, 1.0, INFINITE, -INFINITE, 1.0]},
    "stalled": {"step": [*range(4), *[3] * 34, 4, 4]},
}


def readings(case: Mapping[str, Sequence[object]]) -> list[Snapshot]:
    """A snapshot every ten seconds."""
    snapshots = []
    length = max(len(values) for values in case.values())
    step_time = 0.0
    for number in range(length):
        moment = float(number * STEP_SECONDS)
        now = {name: values[min(number, len(values) - 1)] for name, values in case.items()}
        metrics = {"loss": now.pop("loss")} if "loss" in now else {}
        step = now.pop("step", None)
        if step is not None and (not snapshots or step != snapshots[-1].step):
            step_time = moment
        gpu = GpuReading(index=0, up=False) if now.get("up") is False else replace(BUSY, **now)
        shown = {} if step is None else {"step": step, "step_time": step_time}
        snapshots.append(Snapshot(time=moment, metrics=metrics, gpus=() if metrics or shown else (gpu,), **shown))
    return snapshots


def series(snapshots: Sequence[Snapshot]) -> dict[str, list[str]]:
    """What the monitor exports, as promtool wants it: values in a row, `_` where there is none."""
    rows: dict[str, list[str]] = {}
    for number, snapshot in enumerate(snapshots):
        for family in prometheus_metrics(snapshot):
            for sample in family.samples:
                labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sample.labels.items())
                row = rows.setdefault(f"{sample.name}{{{labels}}}", ["_"] * number)
                value = {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}.get(str(sample.value), f"{sample.value:g}")
                row.append(value)
        for row in rows.values():
            # `stale` ends a series at once, as a scrape does in which it is missing; `_` would keep it for minutes.
            row.extend(["stale" if row[-1] not in ("_", "stale") else "_"] * (number + 1 - len(row)))
    return rows


def alerts_of(snapshots: Sequence[Snapshot]) -> list[dict[str, list[str]]]:
    """By the engine: which alerts fire at each moment, by rule, with their GPUs' labels."""
    engine = AlertEngine()
    moments = []
    for snapshot in snapshots:
        firing: dict[str, list[str]] = {}
        for alert in engine.evaluate(snapshot):
            (gpu,) = snapshot.gpus if alert.gpu is not None else (None,)
            names = {} if gpu is None else {"gpu": str(gpu.index), "uuid": gpu.uuid or "", "name": gpu.name or ""}
            labels = {name: text for name, text in names.items() if text}
            firing.setdefault(alert.rule, []).append(json.dumps({"severity": alert.severity, **labels}))
        moments.append(firing)
    return moments


@pytest.mark.parametrize("case", CASES)
def test_prometheus_and_the_engine_agree_at_every_moment(promtool: str, tmp_path: Path, case: str) -> None:
    snapshots = readings(CASES[case])
    expected = alerts_of(snapshots)
    assert any(expected), "the case is about nothing"
    summaries = {rule.name: rule.summary for rule in RULES}
    lines = [
        f"rule_files: [{json.dumps(str(tmp_path / 'rules.yml'))}]",
        f"evaluation_interval: {STEP_SECONDS}s",
        "tests:",
        f"  - interval: {STEP_SECONDS}s",
        "    input_series:",
        *(
            f"      - {{series: {json.dumps(name)}, values: {' '.join(row)!r}}}"
            for name, row in series(snapshots).items()
        ),
        "    alert_rule_test:",
    ]
    for snapshot, firing in zip(snapshots, expected, strict=True):
        for rule in RULES:
            alerts = ", ".join(
                f"{{exp_labels: {labels}, exp_annotations: {{summary: {json.dumps(summaries[rule.name])}}}}}"
                for labels in firing.get(rule.name, [])
            )
            lines.append(f"      - {{eval_time: {snapshot.time:g}s, alertname: {rule.name}, exp_alerts: [{alerts}]}}")
    (tmp_path / "rules.yml").write_text(prometheus_rules())
    (tmp_path / "test.yml").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_is_put_to_the_test() -> None:
    firing = {rule for case in CASES.values() for now in alerts_of(readings(case)) for rule in now}
    assert firing == {rule.name for rule in RULES}


def test_a_reason_has_a_name_for_each_bit_that_the_rules_ask_for() -> None:
    (throttled,) = [rule for rule in RULES if rule.name == "GpuThrottled"]
    reasons = throttled.query.split('"')[1].split("|")
    assert set(reasons) <= set(THROTTLE_REASONS.values())
