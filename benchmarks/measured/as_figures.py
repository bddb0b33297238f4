"""What the programs of published figures did on a card of ours, as figures of one more source."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from benchmarks.measured import cases
from benchmarks.published.figures import Figure
from vgpu.tools.calibrate.compare import match_spec

_RECORD = Path(__file__).parents[1] / "results" / "h100.json"
SOURCE = "benchmarks/results/h100.json"


def load(path: Path = _RECORD) -> list[Figure]:
    """The record's programs, each with what that card took; those that failed or were not reached are left out."""
    record = json.loads(path.read_text(encoding="utf-8"))
    machine = record["machine"]
    spec = match_spec(machine["gpu"], machine["memory_bytes"])
    if spec is None:
        raise SystemExit(f"no built-in GPU is a {machine['gpu']}")
    values = {
        (entry["group"], entry["name"]): entry["value"]
        for entry in record["entries"]
        if "value" in entry and "doubt" not in entry
    }
    return [
        dataclasses.replace(
            figure, id=f"{spec.name}: {figure.id}", group=group, source=SOURCE, gpu=spec.name,
            value=values[group, name], trust="measured",
        )
        for group, name, figure in cases.programs()
        if (group, name) in values
    ]  # fmt: skip
