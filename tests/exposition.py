"""Prometheus' text format, as its own library reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def values(text: str) -> dict[str, list[float]]:
    """The values of all samples by name, whatever their labels."""
    by_name: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            by_name.setdefault(sample.name, []).append(sample.value)
    return by_name


def names(text: str) -> set[str]:
    """The names of all families, as they are written: a counter's ends in `_total`."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(text)
    }
