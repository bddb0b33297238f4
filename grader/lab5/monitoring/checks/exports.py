"""What a monitor exported, read as its readers read it; what they cannot read fails the check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gradebox.run.assertions import CheckFailed, require

Json: TypeAlias = object
"""What JSON may hold."""


def families(text: str) -> list[Metric]:
    """The families of a text in Prometheus' format, in its order."""
    try:
        return list(text_string_to_metric_families(text))
    except ValueError as error:
        raise CheckFailed(
            f"/metrics is not in Prometheus' text format: {error}", "Yield metric families from collect()."
        ) from None


def series(text: str) -> dict[tuple[str, str], float]:
    """The values of Prometheus' text format by name and label `gpu` ("" without)."""
    return {
        (sample.name, sample.labels.get("gpu", "")): sample.value
        for family in families(text)
        for sample in family.samples
    }


def records(text: str | None) -> list[Mapping[str, Json]]:
    """The records of metrics.jsonl, which must be strict JSON."""
    require(text is not None, "there is no metrics.jsonl in log_dir")

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    rows: list[Mapping[str, Json]] = []
    for line in (text or "").splitlines():
        try:
            record = json.loads(line, parse_constant=refuse)
        except ValueError as error:
            raise CheckFailed(
                f"a line of metrics.jsonl cannot be read: {error}: {line[:100]}",
                "Write the line with MetricFiles.write.",
            ) from None
        require(
            isinstance(record, dict) and {"time", "step", "metrics", "gpus", "alerts"} <= record.keys(),
            f"a line of metrics.jsonl lacks something: {line[:100]}",
            "Write a whole Snapshot with MetricFiles.write.",
        )
        rows.append(record)
    return rows


def length(value: Json) -> object:
    """How many items a list has; what is no list, as it is."""
    return len(value) if isinstance(value, list) else value


def last_families(text: str, count: int) -> list[list[str]]:
    """Name and type of the last families, as they are written: a counter's name ends in `_total`.

    Not of a counter's `_created`, which prometheus_client writes behind it if the family says when it began.
    """
    named = [
        [f"{family.name}_total" if family.type == "counter" else family.name, family.type]
        for family in families(text)
        if not family.name.endswith("_created")
    ]
    return named[-count:]
