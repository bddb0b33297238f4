"""Uses of one memory by entries of streams, and which of them overlap.

Not here: what orders them (`vgpu.runtime.hazards.order`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from vgpu.runtime.hazards.order import Stream

Site = tuple[str, int]
"""File and line of the program."""
NOWHERE: Site = ("", 0)


class Range(NamedTuple):
    """Bytes of a storage, from `low` to before `high`; all of them, if `dense`."""

    low: int
    high: int
    dense: bool


class Access(NamedTuple):
    """One use. `released`: the memory has another owner since."""

    stream: Stream
    number: int
    range: Range
    writes: bool
    name: str
    site: Site
    released: bool = False


def range_of(tensor: torch.Tensor) -> Range:
    """The bytes that a strided tensor reaches."""
    size = tensor.element_size()
    low = int(tensor.storage_offset()) * size
    extent = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=False):
        if length == 0:
            return Range(low, low, dense=True)
        extent += (length - 1) * stride
    return Range(low, low + extent * size, dense=extent <= tensor.numel())


def overlap(one: Range, other: Range) -> bool:
    """Whether they share bytes for sure: two that have gaps may pass between each other."""
    return one.low < other.high and other.low < one.high and (one.dense or other.dense)


def is_superseded(before: Access, now: Access) -> bool:
    """Whether work after `now`, which comes after `before`, comes after `before` as far as it matters."""
    covers = now.range.dense and now.range.low <= before.range.low and before.range.high <= now.range.high
    return (covers or now.range == before.range) and (now.writes or not before.writes)


def moved(access: Access, by: int) -> Access:
    """The same use, seen from a later owner of the memory, whose addresses begin elsewhere."""
    low, high, dense = access.range
    return access._replace(range=Range(low + by, high + by, dense), released=True)
