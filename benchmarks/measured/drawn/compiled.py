"""`torch.compile` against eager execution: seconds of a step, and of compiling it."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import Tensor, nn

from benchmarks.measured.case import Step
from benchmarks.measured.drawn import timing
from benchmarks.measured.drawn.case import Drawn, Family, Measured, Parameters, size, tensor

_MODES = ("default", "reduce-overhead")
_COMPILE_SECONDS = 20.0
"""A compilation is stopped then."""
_PRECISIONS = ("tf32", "bf16")
_DEPTH = 3


def _gelu(x: Tensor, weight: Tensor) -> Tensor:
    return F.gelu(x * 1.5 + weight) * weight


def _softmax(x: Tensor, weight: Tensor) -> Tensor:
    return torch.softmax(x * 0.125 + weight, -1)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x + x.roll(1, 0), weight.shape, weight)


def _loss(x: Tensor, weight: Tensor) -> Tensor:
    return (x - weight).square().mean()


_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gelu and scale": _gelu, "softmax and bias": _softmax, "norm and residual": _norm, "squared error": _loss,
}  # fmt: skip
_NETWORKS = ("mlp, forward", "mlp, forward and backward")


def _draw(rng: random.Random) -> Iterator[Drawn]:
    work = itertools.product(range(2), (*_FUNCTIONS, *_NETWORKS))
    for number, (repetition, name) in enumerate(work):
        is_network = name in _NETWORKS
        shape = {
            "rows": size(rng, 1, 256 if is_network else 8192),
            "columns": size(rng, 16, 1024 if is_network else 8192),
        }
        precision = _PRECISIONS[(number + repetition) % len(_PRECISIONS)]
        for mode in _MODES:
            yield precision, {"work": name, "mode": mode} | shape


def _work(p: Parameters, precision: str) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """What is compiled, and its arguments."""
    x, columns = tensor(p["rows"], p["columns"], precision=precision), p["columns"]
    if p["work"] in _FUNCTIONS:
        return _FUNCTIONS[p["work"]], (x, tensor(columns, precision=precision))
    layers = [part for _ in range(_DEPTH) for part in (nn.Linear(columns, columns), nn.ReLU())]
    return nn.Sequential(*layers).to("cuda", x.dtype), (x,)


def _step(call: Callable[..., Tensor], arguments: tuple[Tensor, ...], weights: list[nn.Parameter]) -> Step:
    """The forward pass; with weights, the backward pass as well."""

    def forward() -> None:
        with torch.no_grad():
            call(*arguments)

    def both() -> None:
        for weight in weights:
            weight.grad = None  # a CUDA graph reuses the memory of the gradients that it returned before
        call(*arguments).sum().backward()

    return both if weights else forward


def _measure(p: Parameters, precision: str) -> Measured:
    import torch._dynamo  # here: they take seconds to import, which cases of other families need not wait for
    import torch._inductor.config

    call, arguments = _work(p, precision)
    weights = list(call.parameters()) if isinstance(call, nn.Module) and p["work"].endswith("backward") else []
    values: dict[str, Any] = {}
    for name, value in timing.wall(_step(call, arguments, weights)).items():
        values[f"eager_{name}"] = value
    try:
        # One thread: a pool of compiling processes takes seconds to start, and would outlive the case.
        with torch._inductor.config.patch(compile_threads=1, force_disable_caches=True):
            step = _step(torch.compile(call, mode=p["mode"]), arguments, weights)
            values["compile_seconds"] = _compile(step)
            return Measured(values | timing.wall(step) | timing.host(step, most_calls=10))
    finally:
        torch._dynamo.reset()


def _compile(step: Step) -> float:
    """Seconds of the first calls: with "reduce-overhead" the second one records a CUDA graph."""
    start = timing.real_seconds()
    with timing.at_most(_COMPILE_SECONDS):
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            step()
        torch.cuda.synchronize()
    return timing.real_seconds() - start


def _bytes(p: Parameters, precision: str) -> float:
    return 2.0**31


COMPILED = Family("compiled", _draw, _measure, _bytes, usual_seconds=_COMPILE_SECONDS)
