"""Products of matrices, plain and batched, with operands as they are stored or transposed."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from benchmarks.measured.drawn import timing
from benchmarks.measured.drawn.case import (
    PRECISIONS,
    Drawn,
    Family,
    Measured,
    Parameters,
    element_bytes,
    log_uniform,
    size,
    tensor,
    until,
)

_PLAIN_SHAPES, _BATCHED_SHAPES = 33, 18
_OPERANDS = ("nn", "nt", "tn")
_MOST_OPERATIONS, _MOST_ELEMENTS = 1e12, 2**27


def _shape(rng: random.Random, operands: str, *, batched: bool) -> dict[str, Any]:
    largest = 2048 if batched else 16_384

    def draw() -> dict[str, Any]:
        return {
            "operands": operands, "batch": log_uniform(rng, 2, 512) if batched else 0,
            "m": size(rng, 1, largest), "n": size(rng, 1, largest), "k": size(rng, 8, largest),
        }  # fmt: skip

    def fits(p: dict[str, Any]) -> bool:
        operations = 2.0 * max(1, p["batch"]) * p["m"] * p["n"] * p["k"]
        return 1e6 <= operations <= _MOST_OPERATIONS and max(_elements(p)) <= _MOST_ELEMENTS

    return until(draw, fits)


def _elements(p: Parameters) -> tuple[int, int, int]:
    batch = max(1, p["batch"])
    return batch * p["m"] * p["k"], batch * p["k"] * p["n"], batch * p["m"] * p["n"]


def _draw(rng: random.Random) -> Iterator[Drawn]:
    for number in range(_PLAIN_SHAPES + _BATCHED_SHAPES):
        shape = _shape(rng, _OPERANDS[number % len(_OPERANDS)], batched=number >= _PLAIN_SHAPES)
        for precision in PRECISIONS:
            yield precision, shape


def _operand(p: Parameters, rows: int, columns: int, transposed: bool, precision: str) -> Tensor:
    head = (p["batch"],) if p["batch"] else ()
    stored = tensor(*head, *((columns, rows) if transposed else (rows, columns)), precision=precision)
    return stored.mT if transposed else stored


def _measure(p: Parameters, precision: str) -> Measured:
    left = _operand(p, p["m"], p["k"], p["operands"][0] == "t", precision)
    right = _operand(p, p["k"], p["n"], p["operands"][1] == "t", precision)

    def step() -> Tensor:
        return left @ right

    return Measured(timing.device(step), step)


def _bytes(p: Parameters, precision: str) -> float:
    return 1.5 * sum(_elements(p)) * element_bytes(precision)


PRODUCTS = Family("product", _draw, _measure, _bytes)
