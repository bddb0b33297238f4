"""The JSON report: one entry per program, and the machine it ran on. Not here: running anything."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Outcome:
    """How one program ended: passed, failed, skipped or expected failure (xfailed)."""

    id: str
    source: str
    outcome: str
    seconds: float
    message: str


def machine(name: str, *, simulated: bool) -> dict[str, Any]:
    """The GPU and the versions around it; the driver is None where NVML does not tell."""
    return {
        "gpu": name, "simulated": simulated, "torch": torch.__version__, "cuda": torch.version.cuda,
        "driver": None if simulated else _driver(), "python": sys.version.split()[0],
    }  # fmt: skip


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except Exception:  # not installed, or no access: the report then has no driver version
        return None
    return str(version)


def write(path: Path, described: dict[str, Any], outcomes: list[Outcome]) -> None:
    """Write the report."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.outcome] = counts.get(outcome.outcome, 0) + 1
    text = {"schema": 1, "machine": described, "counts": counts, "programs": [asdict(item) for item in outcomes]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
