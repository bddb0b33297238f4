"""The figures that were published, as data. Not here: how they are run (`benchmarks.published.run`)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("figures.toml")
# Units of which less is better.
_TIMES = ("ms", "s")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One published figure, `value` in `unit`, and the workload that measures it; its other fields: `figures.toml`."""

    id: str
    group: str
    source: str
    gpu: str
    workload: str
    sizes: Mapping[str, Any]
    metric: str
    unit: str
    value: float
    trust: str
    gpus: int = 1
    precision: str = ""
    software: str = ""
    measured_on: str = ""
    note: str = ""
    tuned: bool = False
    """Whether the program sets `torch.backends.cudnn.benchmark`."""

    @property
    def publisher(self) -> str:
        """Whom it comes from, for leaving one source out: the repository and what it says of the commit."""
        return re.split(r",|@| issue | pull ", self.source)[0].strip()


@dataclass(frozen=True)
class Comparison:
    """A figure and what the virtual GPU says. `ratio` above 1: the virtual GPU is faster, or needs more memory."""

    figure: Figure
    simulated: float
    wall_seconds: float = field(default=0.0, compare=False)

    @property
    def ratio(self) -> float:
        """Simulated over published, of times the other way round."""
        quotient = self.simulated / self.figure.value
        return 1 / quotient if self.figure.unit in _TIMES else quotient


def load(path: Path = _FILE) -> list[Figure]:
    """The figures in the order of the file."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Figure(**{**entry, "value": float(entry["value"])}) for entry in data["figure"]]
