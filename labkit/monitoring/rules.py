"""What is worth an alert: the rules, and the same rules as a file for Prometheus.

Not for finding out which of them fire in a running program: that is the lab's work.

`python -m labkit.monitoring` prints that file.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

SLOWED_BY = ("hardware_slowdown", "thermal_slowdown", "hardware_thermal_slowdown", "power_brake")
"""The throttle reasons worth an alert. At its power cap a GPU is whenever it works hard, and idle is no fault."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A condition, and how long it must hold without a break before it is an alert."""

    name: str
    severity: str
    """"info", "warning" or "critical"."""
    threshold: float | None
    """What the condition compares with; None where there is nothing to compare with."""
    for_seconds: float
    """0: at once."""
    summary: str
    expression: str
    """The condition for Prometheus; `{threshold}` stands for the threshold."""

    @property
    def query(self) -> str:
        """The condition for Prometheus with its threshold."""
        return self.expression.replace("{threshold}", "" if self.threshold is None else f"{self.threshold:g}")


_SLOWED = "|".join(SLOWED_BY)

RULES = (
    Rule(
        name="GpuHot",
        severity="warning",
        threshold=85.0,
        for_seconds=60.0,
        summary="A GPU is hotter than 85 degrees: check fans, dust and the room.",
        expression="gpu_temperature_celsius > {threshold}",
    ),
    Rule(
        name="GpuThrottled",
        severity="warning",
        threshold=None,
        for_seconds=30.0,
        summary="A GPU lowers its clocks to protect itself: check cooling and power supply.",
        expression=f'max by (gpu, uuid, name) (gpu_throttled{{reason=~"{_SLOWED}"}}) == 1',
    ),
    Rule(
        name="GpuMemoryNearlyFull",
        severity="warning",
        threshold=0.95,
        for_seconds=60.0,
        summary="A GPU's memory is nearly full: a smaller batch, or checkpointing, before it runs out.",
        expression="gpu_memory_used_bytes / gpu_memory_total_bytes > {threshold}",
    ),
    Rule(
        name="GpuUnderused",
        severity="info",
        threshold=0.5,
        for_seconds=300.0,
        summary="A GPU waits more than half of the time: profile the data loader.",
        expression="gpu_utilization_ratio < {threshold}",
    ),
    Rule(
        name="GpuErrors",
        severity="critical",
        threshold=None,
        for_seconds=0.0,
        summary="A GPU reported an uncorrected memory error or an XID: results may be wrong.",
        expression="gpu_ecc_errors_total > 0 or gpu_xid_errors_total > 0",
    ),
    Rule(
        name="GpuLost",
        severity="critical",
        threshold=None,
        for_seconds=0.0,
        summary="The driver has lost a GPU: the machine must be restarted.",
        expression="gpu_up == 0",
    ),
    Rule(
        name="LossNotFinite",
        severity="critical",
        threshold=None,
        for_seconds=0.0,
        summary="The loss is infinite or not a number: nothing is learnt from here on.",
        expression="training_loss != training_loss or abs(training_loss) == Inf",
    ),
    Rule(
        name="TrainingStalled",
        severity="critical",
        threshold=300.0,
        for_seconds=0.0,
        summary="No new step for five minutes: a rank that waits, or a loader that died.",
        expression="time() - training_last_step_timestamp_seconds > {threshold}",
    ),
)
"""The rules that a monitor starts with. `dataclasses.replace` makes one with another threshold."""


def prometheus_rules(rules: Sequence[Rule] = RULES) -> str:
    """The rules as a rule file for Prometheus (YAML).

    Source: https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/
    """
    lines = ["# Made from labkit/monitoring/rules.py; check with: promtool check rules", "groups:", "  - name: gpulabs"]
    lines.append("    rules:")
    for rule in rules:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {json.dumps(rule.query)}",
            f"        for: {rule.for_seconds:g}s",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(rule.summary)}",
        ]
    return "\n".join(lines) + "\n"
