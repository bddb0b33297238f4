"""Predicted against measured: ratios, median errors, the table and the JSON document.

Pure Python. Not here: where the two results come from (`vgpu.tools.calibrate.measure`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from vgpu.device.spec import Spec, get_spec, list_specs
from vgpu.runtime.views.thinning import bytes_text, seconds_text

SCHEMA = 1
# Kernels alone, with no launch between them: what the cost model is about.
KERNEL_GROUPS = (
    "matmul", "elementwise", "reduction", "normalisation", "convolution", "attention", "optimizer", "small kernel",
)  # fmt: skip
_NOISY_RATIO = 0.1
_WIDTH = 52


@dataclass(frozen=True)
class Row:
    """One quantity; `ratio` is predicted / measured, None where one side has no value (`note` says why)."""

    group: str
    name: str
    unit: str
    predicted: float | None
    measured: float | None
    spread_ratio: float = 0.0
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Predicted divided by measured."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured

    @property
    def error(self) -> float | None:
        """How far the prediction is off, as a ratio of what was measured."""
        return None if self.ratio is None else abs(self.ratio - 1.0)


def compare(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> list[Row]:
    """The two results of `vgpu.tools.calibrate.measure.everything`, entry by entry, in the order measured."""
    known = {(entry["group"], entry["name"]): entry for entry in predicted["entries"]}
    rows = []
    for real in measured["entries"]:
        virtual = known.get((real["group"], real["name"]), {"error": "not predicted"})
        notes = [f"{who}: {side['error']}" for who, side in (("real", real), ("virtual", virtual)) if "error" in side]
        rows.append(
            Row(
                real["group"], real["name"], real["unit"], virtual.get("value"), real.get("value"),
                real.get("spread_ratio", 0.0), "; ".join(notes),
            )
        )  # fmt: skip
    return rows


def median_error(rows: Iterable[Row]) -> float | None:
    """Median of the errors; None when there is none."""
    errors = [row.error for row in rows if row.error is not None]
    return statistics.median(errors) if errors else None


def medians(rows: Sequence[Row]) -> dict[str, float | None]:
    """Median errors as ratios: of kernels, of everything timed but the start-up, of memory, and of each group."""
    timed = [row for row in rows if row.unit == "seconds" and row.group != "start-up"]
    errors = {
        "kernel times": median_error(row for row in rows if row.group in KERNEL_GROUPS),
        "all times": median_error(timed),
        "memory": median_error(row for row in rows if row.unit == "bytes"),
    }
    groups = dict.fromkeys(row.group for row in rows)
    return errors | {f"group {group}": median_error(row for row in rows if row.group == group) for group in groups}


def document(spec: Spec, predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, for a file: the rows with their ratios, the medians, the machine, and both results as they were."""
    rows = compare(predicted, measured)
    return {
        "schema": SCHEMA, "made_by": "python -m vgpu calibrate",
        "note": "predicted values are simulated by vgpu; measured ones are of the machine named here",
        "spec": spec.name, "machine": dict(measured["machine"]), "medians": medians(rows),
        "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
        "predicted": dict(predicted), "measured": dict(measured),
    }  # fmt: skip


def text(spec: Spec, rows: Sequence[Row], machine: Mapping[str, Any]) -> str:
    """The table: one block per group with its median error, and the three medians that matter at the end."""
    lines = [
        f"Predicted (simulated by vgpu, {spec.name}) against measured ({machine['gpu']}, driver {machine['driver']}, "
        f"torch {machine['torch']})",
    ]
    for group in dict.fromkeys(row.group for row in rows):
        mine = [row for row in rows if row.group == group]
        off = median_error(mine)
        lines.append("")
        head = f"{group}{'' if off is None else f', median error {off:.1%}'}"
        lines.append(f"{head:<{_WIDTH + 2}} {'predicted':>11} {'measured':>11} {'ratio':>6}")
        lines += [_line(row) for row in mine]
    lines.append("")
    for name in ("kernel times", "all times", "memory"):
        off = medians(rows)[name]
        lines.append(f"median error of {name:<13} {'no value' if off is None else f'{off:.1%}'}")
    return "\n".join(lines)


def _line(row: Row) -> str:
    write = bytes_text if row.unit == "bytes" else seconds_text
    name = row.name if len(row.name) <= _WIDTH else f"{row.name[: _WIDTH - 2]}.."
    values = [f"{'-' if value is None else write(value):>11}" for value in (row.predicted, row.measured)]
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    remark = f"  +-{row.spread_ratio:.0%}" if row.spread_ratio > _NOISY_RATIO else ""
    note = f"\n      {row.note}" if row.note else ""
    return f"  {name:<{_WIDTH}} {' '.join(values)} {ratio:>6}{remark}{note}"


def match_spec(name: str, memory_bytes: int) -> Spec | None:
    """The built-in GPU that a real one called `name` is: of the same model, and of those the nearest in memory."""
    words = name.replace("-", " ").upper().split()
    # "RTX 4090" is RTX4090 here.
    words += [word + other for word, other in pairwise(words)]
    models = [spec for spec in map(get_spec, list_specs()) if spec.name.partition("-")[0] in words]
    return min(models, key=lambda spec: abs(spec.memory_bytes - memory_bytes), default=None)
