"""Probes of Lab 5's alerts: those of an engine, and those that a monitor reports."""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
from dataclasses import replace
from pathlib import Path

from gradebox.sandbox.probe_loader import Student
from grader.lab5.monitoring.cases import (
    Evaluate,
    EvaluateReply,
    Raised,
    RaisedReply,
    ReadingCase,
)
from grader.lab5.monitoring.probes.fake_nvml import FakeNvml
from grader.lab5.monitoring.probes.monitors import (
    ALERTS,
    history_of,
    monitored,
    report_of,
    snapshot_of,
)
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.kept import notes
from grader.shared.probes.looks import read_text
from grader.shared.probes.support import sequence
from labkit.monitoring import RULES, GpuReading, Snapshot


def evaluate(student: Student, inputs: Evaluate) -> EvaluateReply:
    """The alerts of one engine at one snapshot after the other; `rules` changes thresholds and times by rule."""
    rules = [replace(rule, **inputs.rules.get(rule.name, {})) for rule in RULES]
    engine = student.module(ALERTS).AlertEngine(rules)
    alerts = []
    unknown = replace(RULES[0], name="GpuIsTired")
    refused = is_refused(lambda: student.module(ALERTS).AlertEngine([unknown]).evaluate(Snapshot(time=0.0)))
    for case in inputs.snapshots:
        snapshot = Snapshot(
            time=case["time"],
            step=case.get("step"),
            step_time=case.get("step_time"),
            metrics={name: float(value) for name, value in case.get("metrics", {}).items()},
            gpus=tuple(map(_reading, case.get("gpus", []))),
        )
        alerts.append([report_of(alert) for alert in sequence(engine.evaluate(snapshot), "AlertEngine.evaluate()")])
    return EvaluateReply(alerts=alerts, refused=refused)


def _reading(case: ReadingCase) -> GpuReading:
    reasons = case.get("throttle_reasons")
    return GpuReading(
        index=case["index"],
        up=case.get("up", True),
        temperature_celsius=case.get("temperature_celsius"),
        utilization_ratio=case.get("utilization_ratio"),
        memory_used_bytes=case.get("memory_used_bytes"),
        memory_total_bytes=case.get("memory_total_bytes"),
        throttle_reasons=None if reasons is None else tuple(reasons),
        ecc_errors=case.get("ecc_errors"),
        xid_errors=case.get("xid_errors"),
    )


def raised(student: Student, inputs: Raised) -> RaisedReply:
    """Which alerts a monitor hands to `on_alert`, after each sample of GPUs that get hot and cool down."""
    nvml = FakeNvml(inputs.gpus)
    rules = [replace(rule, for_seconds=0.0) for rule in RULES if rule.name in ("GpuHot", "LossNotFinite")]
    on_alert, received = notes()
    in_history = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        with monitored(student, log_dir=folder, rules=rules, on_alert=on_alert) as monitor:
            for step, values in enumerate(inputs.celsius):
                for index, value in enumerate(values):
                    nvml.gpus[index]["celsius"] = value
                monitor.sample()
                newest = list(monitor.history)[-1:] if len(history_of(monitor)) else []
                in_history.append([key for snapshot in newest for key in _keys(getattr(snapshot, "alerts", ()))])
                monitor.log_metrics(step, {"loss": math.nan if inputs.lost[step] else 1.0})
            firing = _keys(snapshot_of(monitor).alerts)
        lines = read_text(Path(folder, "metrics.jsonl"))
    reports = [report_of(alert) for alert in received()]
    return RaisedReply(received=reports, firing=firing, in_history=in_history, jsonl=lines)


def _keys(alerts: object) -> list[list[object]]:
    """Rule and GPU of each alert of a snapshot."""
    return [[report.rule, report.gpu] for report in map(report_of, sequence(alerts, "Snapshot.alerts"))]
