"""Rows of a table of kernels that the table itself contradicts: something larger of the same kind took half as long.

No model that charges more for more work can meet both rows. Such rows stay in every count: they are counted once more
by themselves. Not here: tables and their rows (`benchmarks.published.held_out`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_FACTOR = 2.0


class Kernel(NamedTuple):
    """A row: two with the same `kind` are comparable, and `sides` say how large it is."""

    kind: str
    sides: tuple[int, ...]
    seconds: float


def of(kernels: Sequence[Kernel]) -> list[bool]:
    """Of each, whether one of the same kind, at least as large in every side, took less than half as long."""
    by_kind: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_kind.setdefault(kernel.kind, []).append(kernel)
    return [any(_contradicts(other, kernel) for other in by_kind[kernel.kind]) for kernel in kernels]


def _contradicts(other: Kernel, kernel: Kernel) -> bool:
    return other.seconds * _FACTOR < kernel.seconds and all(
        theirs >= own for theirs, own in zip(other.sides, kernel.sides, strict=True)
    )
