"""What Lab 5's monitor should say: made-up GPUs, and the alerts that follow from a row of snapshots."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gradebox.run.assertions import CheckFailed, require
from gradebox.run.input_generator import InputGenerator

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
_SLOWED_BY = {"hardware_slowdown", "thermal_slowdown", "hardware_thermal_slowdown", "power_brake"}
_DEFAULTS: dict[str, tuple[float | None, float]] = {
    "GpuHot": (85.0, 60.0),
    "GpuThrottled": (None, 30.0),
    "GpuMemoryNearlyFull": (0.95, 60.0),
    "GpuUnderused": (0.5, 300.0),
    "GpuErrors": (None, 0.0),
    "GpuLost": (None, 0.0),
    "LossNotFinite": (None, 0.0),
    "TrainingStalled": (300.0, 0.0),
}


def gpu(generator: InputGenerator, index: int) -> dict[str, Any]:
    """What one GPU knows, in NVML's units; nothing else is supported."""
    total = generator.integer(16_000_000_000, 80_000_000_000)
    return {
        "uuid": f"GPU-{generator.integer(10**8, 10**9 - 1)}-{index}",
        "name": f"Made-up GPU {generator.integer(10, 99)}",
        "used_bytes": int(total * generator.uniform(0.2, 0.8)),
        "total_bytes": total,
        "celsius": generator.integer(41, 79),
        "power_milliwatts": generator.integer(90_001, 299_999),
    }


def series(text: str) -> dict[tuple[str, str], float]:
    """The values of Prometheus' text format by name and label `gpu` ("" without)."""
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as error:
        raise CheckFailed(f"/metrics is not in Prometheus' text format: {error}", "yield families of numbers") from None
    return {
        (sample.name, sample.labels.get("gpu", "")): sample.value for family in families for sample in family.samples
    }


def records(text: str | None) -> list[dict[str, Any]]:
    """The records of metrics.jsonl, which must be strict JSON."""
    require(text is not None, "there is no metrics.jsonl in log_dir")

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    found = []
    for line in (text or "").splitlines():
        try:
            record = json.loads(line, parse_constant=refuse)
        except ValueError as error:
            require(
                False,
                f"a line of metrics.jsonl cannot be read: {error}: {line[:100]}",
                "MetricFiles.write writes the line",
            )
        require(
            isinstance(record, dict) and {"time", "step", "metrics", "gpus", "alerts"} <= record.keys(),
            f"a line of metrics.jsonl lacks something: {line[:100]}",
            "write a whole Snapshot, by MetricFiles.write",
        )
        found.append(record)
    return found


def snapshots(
    generator: InputGenerator, *, at_once: bool
) -> Iterator[tuple[dict[str, dict[str, float]], list[dict[str, Any]]]]:
    """Rules (what differs from the defaults) and snapshots to evaluate, one engine each.

    With `at_once` no rule waits and each snapshot stands for itself; else conditions come, hold, break and come again.
    """
    start = float(generator.integer(1_700_000_000, 1_800_000_000))
    good = {
        "temperature_celsius": 60.0,
        "utilization_ratio": 0.9,
        "memory_used_bytes": 10,
        "memory_total_bytes": 20,
        "throttle_reasons": ["power_cap"],
        "ecc_errors": 0,
        "xid_errors": 0,
    }
    if at_once:
        heat = generator.integer(70, 95)
        rules = {name: {"for_seconds": 0.0} for name in _DEFAULTS}
        for changed in (rules, {**rules, "GpuHot": {"for_seconds": 0.0, "threshold": float(heat)}}):
            limit = changed["GpuHot"].get("threshold", 85.0)
            cases: list[dict[str, Any]] = [
                {},
                {"temperature_celsius": limit},
                {"temperature_celsius": limit + 0.5},
                {"utilization_ratio": 0.5},
                {"utilization_ratio": generator.uniform(0.0, 0.45)},
                {"utilization_ratio": 0.0},
                {"memory_used_bytes": 19},
                {"memory_used_bytes": 20},
                {"memory_used_bytes": 20, "memory_total_bytes": None},
                {"memory_used_bytes": None},
                {"throttle_reasons": ["idle"]},
                *({"throttle_reasons": ["power_cap", reason]} for reason in sorted(_SLOWED_BY)),
                {"ecc_errors": generator.integer(1, 5)},
                {"ecc_errors": None, "xid_errors": 2},
                {"temperature_celsius": None, "utilization_ratio": 0.1, "ecc_errors": 3},
                {"utilization_ratio": None, "temperature_celsius": limit + 9.0},
                {"xid_errors": None, "ecc_errors": 1},
                dict.fromkeys(good),
                {**dict.fromkeys(good), "up": False},
            ]
            cases = generator.shuffled(cases)
            yield (
                changed,
                [
                    {
                        "time": start + number,
                        "step": number,
                        "step_time": start + number,
                        "metrics": {"loss": 1.0},
                        "gpus": [{"index": 0, **good}, {"index": 1, **good, **case}],
                    }
                    for number, case in enumerate(cases)
                ],
            )
        losses: list[dict[str, Any]] = [{}, {"loss": 3.0}, {"loss": "nan"}, {"loss": 2.0}, {"loss": "inf"}]
        losses = generator.shuffled([*losses, {"loss": "-inf"}, {"accuracy": 0.5}])
        yield {}, [{"time": start + number, "metrics": metrics} for number, metrics in enumerate(losses)]
        waits = generator.shuffled([None, 0.0, 299.0, 300.0, 301.0, 4000.0, 1.0])
        yield (
            {},
            [
                {"time": start + 10_000 * n, "step": n, "step_time": None if w is None else start + 10_000 * n - w}
                for n, w in enumerate(waits)
            ],
        )
        return
    seconds = generator.integer(20, 90)
    for changed in ({}, {"GpuHot": {"for_seconds": float(seconds)}, "GpuMemoryNearlyFull": {"threshold": 0.6}}):
        wait = changed.get("GpuHot", {}).get("for_seconds", 60.0)
        moments = [0.0, wait / 2, wait - 1, wait, wait + 5, wait + 6, wait + 7, 1.5 * wait + 7, 2 * wait + 8]
        moments += [2 * wait + 9, 2 * wait + 10, 3 * wait + 10]
        hot_at: list[int | None] = [1, 1, 1, 1, 1, 0, 1, 1, 1, 1, None, 1]
        full_from = generator.integer(1, 4)
        places = generator.shuffled(range(3))
        given = []
        for number, (moment, hot) in enumerate(zip(moments, hot_at, strict=True)):
            readings = {**good, "memory_used_bytes": 20 if number >= full_from else 10}
            readings["temperature_celsius"] = None if hot is None else 60.0 + 30.0 * hot
            beside = {**good, "throttle_reasons": ["power_brake"] if number % 2 else ["thermal_slowdown"]}
            all_of_them = [readings, good, beside]
            gpus = [{"index": index, **all_of_them[place]} for index, place in enumerate(places)]
            given.append({"time": start + moment, "metrics": {"loss": 1.0}, "gpus": gpus})
        yield changed, given


def taking_turns(generator: InputGenerator) -> list[list[bool]]:
    """Three conditions that come, hold, go and come again; one begins while another holds, or ends, or is away."""
    lead, hold, gap = generator.integer(1, 3), generator.integer(2, 3), generator.integer(1, 3)
    row = [False] * lead + [True] * hold + [False] * gap + [True] * generator.integer(1, 2) + [False]
    last = generator.integer(2, hold + gap)
    return [[False] * shift + row + [False] * (last - shift) for shift in (*generator.shuffled([0, 1]), last)]


def expected_alerts(
    rules: Mapping[str, Mapping[str, float]], given: Sequence[Mapping[str, Any]]
) -> list[list[tuple[str, int | None, float, float]]]:
    """(rule, gpu, since, value) of the alerts at each snapshot."""
    since: dict[tuple[str, int | None], float] = {}
    told = []
    for snapshot in given:
        firing = []
        for name, (threshold, wait) in _DEFAULTS.items():
            limit = rules.get(name, {}).get("threshold", threshold)
            wait = rules.get(name, {}).get("for_seconds", wait)
            values = _broken(name, limit, snapshot)
            for key in [key for key in since if key[0] == name and key[1] not in values]:
                del since[key]
            for index, value in values.items():
                begun = since.setdefault((name, index), snapshot["time"])
                if snapshot["time"] - begun >= wait:
                    firing.append((name, index, begun, value))
        told.append(firing)
    return told


def _broken(name: str, limit: float | None, snapshot: Mapping[str, Any]) -> dict[int | None, float]:
    """For which GPUs, or None for the training, a rule's condition holds."""
    if name == "LossNotFinite":
        loss = float(snapshot.get("metrics", {}).get("loss", 0.0))
        return {} if math.isfinite(loss) else {None: loss}
    if name == "TrainingStalled":
        last = snapshot.get("step_time")
        waited = 0.0 if last is None else snapshot["time"] - last
        return {None: waited} if waited > (limit or 0.0) else {}
    found: dict[int | None, float] = {}
    for reading in snapshot.get("gpus", []):
        value = _value(name, limit or 0.0, reading)
        if value is not None:
            found[reading["index"]] = value
    return found


def _value(name: str, limit: float, reading: Mapping[str, Any]) -> float | None:
    """What breaks a rule on one GPU; None where nothing does."""
    if name == "GpuLost":
        return None if reading.get("up", True) else 1.0
    if name == "GpuThrottled":
        return 1.0 if _SLOWED_BY & set(reading.get("throttle_reasons") or ()) else None
    if name == "GpuUnderused":
        share = reading.get("utilization_ratio")
        return share if share is not None and share < limit else None
    if name == "GpuErrors":
        value = (reading.get("ecc_errors") or 0) + (reading.get("xid_errors") or 0)
    elif name == "GpuMemoryNearlyFull":
        used, total = reading.get("memory_used_bytes"), reading.get("memory_total_bytes")
        value = used / total if used is not None and total else 0.0
    else:
        value = reading.get("temperature_celsius") or 0.0
    return float(value) if value > limit else None
