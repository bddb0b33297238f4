"""What programs do with the rows and columns of matrices: softmax, losses, norms, reductions; forward and backward."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import Tensor

from benchmarks.measured.drawn import timing
from benchmarks.measured.drawn.case import (
    LOW_AND_FULL,
    Drawn,
    Family,
    Measured,
    Parameters,
    backward_of,
    element_bytes,
    size,
    tensor,
    until,
)

_MOST_ELEMENTS = 2**27
_SHAPES_EACH = 5
_ROWS = ("softmax", "log_softmax", "cross_entropy", "layer_norm", "rms_norm")
_REDUCTIONS = ("sum", "mean", "amax", "norm", "argmax")
_DIMENSIONS: dict[str, tuple[int, ...]] = {"rows": (1,), "columns": (0,), "all": (0, 1)}


def _shape(rng: random.Random) -> dict[str, Any]:
    def draw() -> dict[str, Any]:
        return {"rows": size(rng, 1, 131_072), "columns": size(rng, 2, 65_536)}

    return until(draw, lambda p: bool(2**8 <= p["rows"] * p["columns"] <= _MOST_ELEMENTS))


def _draw(rng: random.Random) -> Iterator[Drawn]:
    for function in _ROWS * _SHAPES_EACH:
        shape = {"function": function} | _shape(rng)
        for precision in LOW_AND_FULL:
            for which in ("forward", "backward"):
                yield precision, shape | {"pass": which}


def _row_function(p: Parameters, precision: str) -> tuple[Callable[[Tensor], Tensor], list[Tensor]]:
    """The function and its weights."""
    rows, columns, name = p["rows"], p["columns"], p["function"]
    if name in ("softmax", "log_softmax"):
        return (lambda x: getattr(torch, name)(x, -1)), []
    if name == "cross_entropy":
        targets = torch.randint(columns, (rows,), device="cuda")
        return (lambda x: F.cross_entropy(x, targets)), []
    weight = tensor(columns, precision=precision).requires_grad_()
    if name == "rms_norm":
        return (lambda x: F.rms_norm(x, (columns,), weight)), [weight]
    bias = tensor(columns, precision=precision).requires_grad_()
    return (lambda x: F.layer_norm(x, (columns,), weight, bias)), [weight, bias]


def _measure(p: Parameters, precision: str) -> Measured:
    return _timed(p, precision, *_row_function(p, precision))


def _timed(p: Parameters, precision: str, call: Callable[[Tensor], Tensor], weights: list[Tensor]) -> Measured:
    backward = p["pass"] == "backward"
    x = tensor(p["rows"], p["columns"], precision=precision).requires_grad_(backward)

    def forward() -> Tensor:
        return call(x)

    step = backward_of(forward(), [x, *weights]) if backward else forward
    return Measured(timing.device(step), step)


def _bytes(p: Parameters, precision: str) -> float:
    return float(6 * p["rows"] * p["columns"] * element_bytes(precision))


ROWS = Family("row-function", _draw, _measure, _bytes)


def _draw_reductions(rng: random.Random) -> Iterator[Drawn]:
    precisions = itertools.cycle(LOW_AND_FULL)
    for function, over in itertools.product(_REDUCTIONS, _DIMENSIONS):
        for _ in range(4):
            shape = {"function": function, "over": over} | _shape(rng)
            precision = next(precisions)
            for which in ("forward",) if function == "argmax" else ("forward", "backward"):
                yield precision, shape | {"pass": which}


def _reduction(p: Parameters) -> Callable[[Tensor], Tensor]:
    name, dimensions = p["function"], _DIMENSIONS[p["over"]]
    if name == "argmax":
        return lambda x: torch.argmax(x, None if len(dimensions) == 2 else dimensions[0])
    if name == "norm":
        return lambda x: torch.linalg.vector_norm(x, dim=dimensions)
    function = getattr(torch, name)
    return lambda x: function(x, dimensions)


def _measure_reduction(p: Parameters, precision: str) -> Measured:
    return _timed(p, precision, _reduction(p), [])


REDUCTIONS = Family("reduction", _draw_reductions, _measure_reduction, _bytes)
