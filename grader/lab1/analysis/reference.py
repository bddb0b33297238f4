"""What follows from made-up measurements: crossover, bound, bottleneck, slowest operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grader.lab1.analysis.cases import Comparison, Named
from grader.lab1.analysis.cases.products import LIMITS
from labkit.results import STAGES


def crossover(rows: Sequence[Comparison]) -> int | None:
    """The smallest size from which on the GPU is faster at every larger size; None if there is none."""
    ordered = sorted(rows)
    for index, row in enumerate(ordered):
        if all(cpu > gpu for _, cpu, gpu in ordered[index:]):
            return int(row[0])
    return None


def bound(limits: Mapping[str, float]) -> str:
    """What takes longest; of equal ones the first."""
    return max(LIMITS, key=lambda name: limits[name])


def bottleneck(peaks: Sequence[int]) -> str:
    """The stage with the largest peak; of equal ones the first."""
    return STAGES[peaks.index(max(peaks))]


def increases(allocated: Sequence[int]) -> list[list[object]]:
    """How much more each stage holds than the one before; the first counts from 0."""
    steps = [after - before for before, after in zip([0, *allocated], allocated, strict=False)]
    return [[name, step] for name, step in zip(STAGES, steps, strict=True)]


def slowest(rows: Sequence[Named], count: int | None) -> tuple[list[str], str]:
    """The names of the slowest operations, the slowest first, and which of their times decides."""
    place = 2 if any(row[2] > 0 for row in rows) else 1
    order = sorted(rows, key=lambda row: row[place], reverse=True)
    names = [row[0] for row in order[: 5 if count is None else count]]
    return names, ("cpu_seconds", "device_seconds")[place - 1]
