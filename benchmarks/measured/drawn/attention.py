"""`scaled_dot_product_attention` with each of its backends, forward and backward."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.measured.drawn import timing
from benchmarks.measured.drawn.case import (
    Drawn,
    Family,
    Measured,
    Parameters,
    backward_of,
    element_bytes,
    log_uniform,
    size,
    tensor,
    until,
)

_SHAPES = 26
_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH,
}  # fmt: skip
_PRECISIONS = ("bf16", "fp16", "fp32", "bf16", "fp16", "tf32")
_HEAD_WIDTHS = (16, 32, 40, 64, 64, 80, 96, 128, 128, 256)
_MOST_SCORES, _MOST_OPERATIONS = 2**28, 2e11


def _scores(p: Parameters) -> int:
    return int(p["batch"] * p["heads"] * p["queries"] * p["keys"])


def _shape(rng: random.Random, causal: bool) -> dict[str, Any]:
    def draw() -> dict[str, Any]:
        queries = size(rng, 16, 8192)
        # Another number of keys: cross-attention, or a query of one token while a text is generated.
        other = not causal and rng.random() < 0.4
        keys = size(rng, 16, 8192) if other else queries
        return {
            "batch": log_uniform(rng, 1, 64), "heads": rng.choice((1, 2, 4, 8, 12, 16, 32)),
            "queries": 1 if other and rng.random() < 0.4 else queries, "keys": keys,
            "head_width": rng.choice(_HEAD_WIDTHS), "causal": causal,
        }  # fmt: skip

    def fits(p: dict[str, Any]) -> bool:
        return 2**8 <= _scores(p) <= _MOST_SCORES and 4 * _scores(p) * p["head_width"] <= _MOST_OPERATIONS

    return until(draw, fits)


def _draw(rng: random.Random) -> Iterator[Drawn]:
    for number in range(_SHAPES):
        shape, precision = _shape(rng, causal=number % 2 == 0), _PRECISIONS[number % len(_PRECISIONS)]
        for backend in _BACKENDS:
            if backend == "flash" and precision in ("fp32", "tf32"):  # it has half precision only
                continue
            for which in ("forward", "backward"):
                yield precision, shape | {"backend": backend, "pass": which}


def _measure(p: Parameters, precision: str) -> Measured:
    head = (p["batch"], p["heads"])
    query = tensor(*head, p["queries"], p["head_width"], precision=precision)
    key, value = (tensor(*head, p["keys"], p["head_width"], precision=precision) for _ in range(2))
    inputs = [query, key, value]
    backward = p["pass"] == "backward"

    def forward() -> Tensor:
        with sdpa_kernel([_BACKENDS[p["backend"]]]):
            return F.scaled_dot_product_attention(query, key, value, is_causal=p["causal"])

    for operand in inputs:
        operand.requires_grad_(backward)
    step = backward_of(forward(), inputs) if backward else forward
    return Measured(timing.device(step), step)


def _bytes(p: Parameters, precision: str) -> float:
    data = 8 * p["batch"] * p["heads"] * (p["queries"] + p["keys"]) * p["head_width"]
    return float(element_bytes(precision) * (data + (6 * _scores(p) if p["backend"] == "math" else 0)) + 4 * data)


ATTENTION = Family("attention", _draw, _measure, _bytes)
