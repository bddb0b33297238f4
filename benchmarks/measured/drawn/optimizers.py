"""Steps of optimizers over lists of parameters: fused, by groups of tensors ("foreach"), and one by one."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.measured.drawn import timing
from benchmarks.measured.drawn.case import (
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

_LISTS = 8
_MOST_ELEMENTS = 2**27
_MOST_ONE_BY_ONE = 80
"""Parameters of a step without groups: with more of them its kernels would not fit into the device's queue."""
_KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD, momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "Adam": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {}),
}
_VARIANTS: dict[str, dict[str, bool]] = {
    "foreach": {"foreach": True}, "fused": {"fused": True}, "one by one": {"foreach": False, "fused": False},
}  # fmt: skip


def _elements(p: Parameters) -> int:
    return int(p["weights"] * p["elements"] + p["biases"] * p["bias_elements"])


def _list(rng: random.Random) -> dict[str, Any]:
    def draw() -> dict[str, Any]:
        weights, elements = log_uniform(rng, 1, _MOST_ONE_BY_ONE // 2), size(rng, 16, 2**24)
        biases = weights if rng.random() < 0.7 else 0
        return {"weights": weights, "elements": elements, "biases": biases, "bias_elements": round(elements**0.5)}

    return until(draw, lambda p: _elements(p) <= _MOST_ELEMENTS)


def _draw(rng: random.Random) -> Iterator[Drawn]:
    """Every list with all optimizers and variants."""
    for number in range(_LISTS):
        sizes, precision = _list(rng), "bf16" if number % 4 == 3 else "fp32"
        for kind, variant in itertools.product(_KINDS, _VARIANTS):
            yield precision, {"optimizer": kind, "variant": variant} | sizes


def _measure(p: Parameters, precision: str) -> Measured:
    shapes = [p["elements"]] * p["weights"] + [p["bias_elements"]] * p["biases"]
    weights = [tensor(count, precision=precision).requires_grad_() for count in shapes]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    kind, options = _KINDS[p["optimizer"]]
    step = kind(weights, lr=1e-3, **options, **_VARIANTS[p["variant"]]).step
    return Measured(timing.host_and_device(step), step)


def _bytes(p: Parameters, precision: str) -> float:
    return 7.0 * _elements(p) * element_bytes(precision)


OPTIMIZERS = Family("optimizer", _draw, _measure, _bytes)
