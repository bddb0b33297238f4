"""A record next to the virtual GPU: ratios, medians by group, random numbers. Not here: measuring (`record`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vgpu
from benchmarks.measure import percent, save
from benchmarks.measured import cases, draws
from vgpu.tools.calibrate.compare import match_spec

_PAGE = Path(__file__).parents[2] / "docs" / "how-we-know-figures.md"
_ON_THE_PAGE = "h100_compared"
_BEGIN, _END = "<!-- measured: {} -->", "<!-- end of measured -->"
_TIMES = ("ms", "s", "seconds")
_CLOSE = 4e-6
"""Of normal numbers and what is made of them, relative to the largest: other compilers round logarithms otherwise."""


@dataclass(frozen=True)
class Row:
    """One value. `ratio` above 1: the virtual GPU is faster, or needs more memory."""

    group: str
    name: str
    unit: str
    measured: float
    simulated: float

    @property
    def ratio(self) -> float:
        quotient = self.simulated / self.measured
        return 1 / quotient if self.unit in _TIMES else quotient


def simulate(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The record's cases on the virtual GPU of that name, each on a new one."""
    spec = match_spec(record["machine"]["gpu"], record["machine"]["memory_bytes"])
    if spec is None:
        raise SystemExit(f"no built-in GPU is a {record['machine']['gpu']}")
    keys = {(entry["group"], entry["name"]) for entry in record["entries"] if "error" not in entry}
    for section in cases.SECTIONS.values():
        for case in section():
            if (case.group, case.name) in keys:
                with vgpu.attach(spec.name, values=False):
                    yield cases.run(case)


def rows_of(record: Mapping[str, Any], simulated: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Value by value, several of a case each as a group of its own. An entry's `doubt` says why it does not count."""
    known = {(entry["group"], entry["name"]): entry for entry in simulated}
    rows = []
    for real in record["entries"]:
        virtual = known.get((real["group"], real["name"]))
        if "error" in real or "doubt" in real or virtual is None:
            continue
        if "error" in virtual:
            raise SystemExit(f"{real['group']}: {real['name']}: {virtual['error']}")
        if "value" in real:
            rows.append(Row(real["group"], real["name"], real["unit"], real["value"], virtual["value"]))
            continue
        for name, value in real["values"].items():
            unit = "seconds" if name.endswith("seconds") else "bytes"
            group = f"{real['group']}, {name.replace('_', ' ')}"
            rows.append(Row(group, real["name"], unit, value, virtual["values"][name]))
    return rows


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By group, in the order of the record."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.group, []).append(row)
    return grouped


def error(rows: Iterable[Row]) -> float:
    """Median of how far the ratios are from 1, the same for half as for twice."""
    return math.expm1(statistics.median(abs(math.log(row.ratio)) for row in rows))


def table(rows: Sequence[Row]) -> list[str]:
    """Markdown: each group with its median error and the range of its ratios."""
    lines = ["| what | values | median error | ratios |", "|---|---:|---:|---|"]
    for name, members in groups(rows).items():
        ratios = [row.ratio for row in members]
        lines.append(
            f"| {name} | {len(members)} | {percent(error(members))} | {min(ratios):.2f} to {max(ratios):.2f} |"
        )
    return lines


def drawn(record: Mapping[str, Any]) -> dict[str, str]:
    """Of each draw: "equal" to the bit, "close", or "different"."""
    spec = match_spec(record["machine"]["gpu"], record["machine"]["memory_bytes"])
    assert spec is not None
    with vgpu.attach(spec.name):
        mine = {draw["name"]: draw for draw in draws.draw()}
    return {real["name"]: _alike(real, mine.get(real["name"], {})) for real in record["draws"]}


def _alike(real: Mapping[str, Any], virtual: Mapping[str, Any]) -> str:
    if "error" in real or "error" in virtual or real["shape"] != virtual["shape"]:
        return "different"
    if real["crc32"] == virtual["crc32"]:
        return "equal" if real["offset"] == virtual["offset"] else "other offset"
    largest = max(1.0, *map(abs, real["ends"]))
    near = all(abs(a - b) <= _CLOSE * largest for a, b in zip(real["ends"], virtual["ends"], strict=True))
    return "different" if not near else "close" if real["offset"] == virtual["offset"] else "other offset"


def write(name: str, record: Mapping[str, Any], rows: Sequence[Row], numbers: Mapping[str, str]) -> Path:
    """The result, and of the H100 the table in `docs/how-we-know-figures.md`, between its marks; the result's path."""
    if name == _ON_THE_PAGE:
        _write_table(rows)
    return save(
        name,
        {
            "recorded_on": dict(record["machine"]),
            "groups": {
                group: {"values": len(of), "median_error": round(error(of), 4)} for group, of in groups(rows).items()
            },
            "rows": [
                {
                    "group": row.group, "name": row.name, "unit": row.unit, "measured": row.measured,
                    "simulated": row.simulated, "ratio": round(row.ratio, 4),
                }
                for row in rows
            ],
            "random_numbers": dict(numbers),
        },
    )  # fmt: skip


def _write_table(rows: Sequence[Row]) -> None:
    text = _PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(_BEGIN.format("groups"))
    _, _, tail = rest.partition(_END)
    _PAGE.write_text("\n".join((head + _BEGIN.format("groups"), "", *table(rows), "", _END + tail)), encoding="utf-8")
