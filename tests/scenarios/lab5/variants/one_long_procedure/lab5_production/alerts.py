"""Task 5.3: alerts."""

from collections.abc import Sequence

from labkit.monitoring import RULES, SLOWED_BY, Alert, Rule, Snapshot


class AlertEngine:
    """One chain of conditions."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)
        self.since: dict[tuple[str, int | None], float] = {}

    def evaluate(self, snapshot: Snapshot) -> tuple[Alert, ...]:
        """All rules, for each all GPUs."""
        alerts = []
        for rule in self.rules:
            broken = {}
            if rule.name == "LossNotFinite":
                if "loss" in snapshot.metrics:
                    loss = snapshot.metrics["loss"]
                    if loss != loss or loss in (float("inf"), float("-inf")):
                        broken[None] = loss
            elif rule.name == "TrainingStalled":
                silent = 0.0 if snapshot.step_time is None else snapshot.time - snapshot.step_time
                if snapshot.step_time is not None and silent > rule.threshold:
                    broken[None] = silent
            elif rule.name not in (
                "GpuHot", "GpuThrottled", "GpuMemoryNearlyFull", "GpuUnderused", "GpuErrors", "GpuLost",
            ):  # fmt: skip
                raise ValueError(f"nobody knows a rule {rule.name!r}")
            else:
                for gpu in snapshot.gpus:
                    if rule.name == "GpuHot":
                        if gpu.temperature_celsius is not None and gpu.temperature_celsius > rule.threshold:
                            broken[gpu.index] = gpu.temperature_celsius
                    elif rule.name == "GpuThrottled":
                        if gpu.throttle_reasons is not None:
                            for reason in gpu.throttle_reasons:
                                if reason in SLOWED_BY:
                                    broken[gpu.index] = 1.0
                    elif rule.name == "GpuMemoryNearlyFull":
                        if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
                            share = gpu.memory_used_bytes / gpu.memory_total_bytes
                            if share > rule.threshold:
                                broken[gpu.index] = share
                    elif rule.name == "GpuUnderused":
                        if gpu.utilization_ratio is not None and gpu.utilization_ratio < rule.threshold:
                            broken[gpu.index] = gpu.utilization_ratio
                    elif rule.name == "GpuErrors":
                        errors = 0
                        if gpu.ecc_errors is not None:
                            errors += gpu.ecc_errors
                        if gpu.xid_errors is not None:
                            errors += gpu.xid_errors
                        if errors > 0:
                            broken[gpu.index] = float(errors)
                    elif gpu.up is False:
                        broken[gpu.index] = 1.0
            for key in list(self.since):
                if key[0] == rule.name and key[1] not in broken:
                    del self.since[key]
            for index, value in broken.items():
                key = (rule.name, index)
                if key not in self.since:
                    self.since[key] = snapshot.time
                if snapshot.time - self.since[key] >= rule.for_seconds:
                    if index is None:
                        message = f"{rule.name}: {rule.summary} ({value:g})"
                    else:
                        message = f"{rule.name}: GPU {index}: {rule.summary} ({value:g})"
                    alerts.append(
                        Alert(
                            rule=rule.name,
                            severity=rule.severity,
                            gpu=index,
                            value=value,
                            since=self.since[key],
                            message=message,
                        )
                    )
        return tuple(alerts)
