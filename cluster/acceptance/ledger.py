"""The ledger of readings (readings.toml): which check judges each field that a worker records, and what none does."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from cluster.acceptance.records import Record

WAYS = ("absolute", "siblings", "history")
NOT = "not: "
"""Begins the reason why a field is not judged in one of WAYS."""
WHOLE = ("reading", "presence.host", "network.ports", "steadiness.products", "steadiness.copies", "collectives.steady")
"""Tables of which each field has an entry of its own."""
PREFIXES = {"before": "", "after": "", "network_after": "network"}
"""Of stages that another one repeats: the same fields."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One field: what it means, and the check, or the reason, for each of WAYS."""

    meaning: str
    unit: str
    absolute: str
    siblings: str
    history: str
    kind: str
    """What its values look like: a key of `form.KINDS`."""
    told: str = "maybe"
    lasting: bool = False
    grows: bool = False
    still: bool = False
    alike: str = ""

    @property
    def judged(self) -> bool:
        """Whether any check looks at it."""
        return not all(str(getattr(self, way)).startswith(NOT) for way in WAYS)


@cache
def readings() -> Mapping[str, Reading]:
    """The ledger, by field; a `*` stands for any name."""
    return {name: Reading(**entry) for name, entry in _document()["reading"].items()}


@cache
def cannot() -> Mapping[str, str]:
    """What this test cannot read, with the reason."""
    return dict(_document()["cannot"])


def _document() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "readings.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=4096)
def entry(field: str) -> str | None:
    """The name of a field's entry: the field itself, or a pattern. An empty table is what it could hold."""
    known = readings()
    if f"{field}.*" in known:
        return f"{field}.*"
    return field if field in known else next((name for name in known if "*" in name and fnmatchcase(field, name)), None)


def fields(record: Record) -> Iterator[str]:
    """Every field that a rank has recorded: "reading.pcie_width", "compute.products.float32.tflops"."""
    for stage, result in record.results.items():
        if "error" in result or "skipped" in result:
            continue
        yield from _leaves(result, PREFIXES.get(stage, stage))


def _leaves(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner in value:
            yield from _leaves(inner, path)
    else:
        yield path
