"""Copies that change the order of elements, and tensors put together from others."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.measured.case import Step
from benchmarks.measured.drawn import timing
from benchmarks.measured.drawn.case import (
    LOW_AND_FULL,
    Drawn,
    Family,
    Measured,
    Parameters,
    element_bytes,
    size,
    tensor,
    until,
)

_SHAPES_EACH = 10
_MOST_ELEMENTS = 2**26


def _to_layout(before: torch.memory_format, after: torch.memory_format) -> Callable[[Tensor], Step]:
    def prepare(x: Tensor) -> Step:
        stored = x.contiguous(memory_format=before)
        return lambda: stored.contiguous(memory_format=after)

    return prepare


def _slices(x: Tensor) -> Step:
    half = x[..., : max(1, x.shape[-1] // 2)]
    return lambda: half.contiguous()


_PLAIN, _LAST = torch.contiguous_format, torch.channels_last
_MATRICES: dict[str, Callable[[Tensor], Step]] = {
    "transpose, contiguous": lambda x: lambda: x.t().contiguous(),
    "half of each row, contiguous": _slices,
    "cat of 2 by rows": lambda x: lambda: torch.cat((x, x), 0),
    "cat of 3 by columns": lambda x: lambda: torch.cat((x, x, x), 1),
}
_IMAGES: dict[str, Callable[[Tensor], Step]] = {
    "to channels_last": _to_layout(_PLAIN, _LAST),
    "from channels_last": _to_layout(_LAST, _PLAIN),
    "permute 0 2 1 3, contiguous": lambda x: lambda: x.permute(0, 2, 1, 3).contiguous(),
    "cat of 2 by channels": lambda x: lambda: torch.cat((x, x), 1),
}


def _shape(rng: random.Random, operation: str) -> dict[str, Any]:
    def draw() -> dict[str, Any]:
        if operation in _MATRICES:
            return {"operation": operation, "shape": [size(rng, 1, 32_768), size(rng, 2, 32_768)]}
        sides = [size(rng, 1, 128), size(rng, 1, 1024), size(rng, 4, 256), size(rng, 4, 256)]
        return {"operation": operation, "shape": sides}

    return until(draw, lambda p: bool(2**10 <= _elements(p) <= _MOST_ELEMENTS))


def _elements(p: Parameters) -> int:
    count = 1
    for side in p["shape"]:
        count *= side
    return count


def _draw(rng: random.Random) -> Iterator[Drawn]:
    for number in range(_SHAPES_EACH):
        for place, operation in enumerate((*_MATRICES, *_IMAGES)):
            yield LOW_AND_FULL[(number + place) % len(LOW_AND_FULL)], _shape(rng, operation)


def _measure(p: Parameters, precision: str) -> Measured:
    step = (_MATRICES | _IMAGES)[p["operation"]](tensor(*p["shape"], precision=precision))
    return Measured(timing.device(step), step)


def _bytes(p: Parameters, precision: str) -> float:
    return 6.0 * _elements(p) * element_bytes(precision)


LAYOUTS = Family("layout", _draw, _measure, _bytes)
