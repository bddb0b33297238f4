"""What a drawn case and a family of cases are, and what families share. Not here: any workload."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.measured.case import Step
from benchmarks.published.timing import dtype_of

Parameters = Mapping[str, Any]
Drawn = tuple[str, dict[str, Any]]
"""Precision and parameters of a case that has no id yet."""
LOW_AND_FULL = ("fp32", "fp16", "bf16")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True)
class Case:
    """`precision` is a word of `benchmarks.published.timing`; `parameters` are the family's."""

    id: str
    family: str
    precision: str
    parameters: Parameters

    def document(self) -> dict[str, Any]:
        """The case as a line of `cases.jsonl`, and the head of its entry."""
        return {
            "id": self.id, "family": self.family, "precision": self.precision, "parameters": dict(self.parameters),
        }  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """The values of a case, by name, and the work itself if a profiler may watch it."""

    values: dict[str, Any]
    step: Step | None = None


@dataclass(frozen=True)
class Family:
    """Cases of one kind: how they are drawn, how one is measured, and how many bytes of device memory it needs."""

    name: str
    draw: Callable[[random.Random], Iterator[Drawn]]
    measure: Callable[[Parameters, str], Measured]
    bytes_needed: Callable[[Parameters, str], float]
    usual_seconds: float = field(default=0.0)
    """If set, a case is begun only if so much time is left: for cases that take much longer than the others."""
    missing: Callable[[], str] = lambda: ""
    """Why the family cannot run on this machine; empty if it can."""


def log_uniform(rng: random.Random, low: int, high: int) -> int:
    """An integer of the range, each order of magnitude as likely as another."""
    return min(high, max(low, round(math.exp(rng.uniform(math.log(low), math.log(high))))))


def size(rng: random.Random, low: int, high: int) -> int:
    """Log-uniform as well. Two in five are as drawn, mostly unaligned; others are rounded as in programs."""
    drawn = log_uniform(rng, low, high)
    multiple = rng.choice((1, 1, 8, 32, 0))
    if multiple == 0:
        return min(high, max(low, 1 << round(math.log2(drawn))))
    return min(high, max(low, round(drawn / multiple) * multiple))


def until(draw: Callable[[], dict[str, Any]], fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Draw until the work is of a size that a case may have."""
    for _ in range(10_000):
        drawn = draw()
        if fits(drawn):
            return drawn
    raise ValueError("no case of this range is small enough")


def element_bytes(precision: str) -> int:
    """Bytes of an element of the tensors of a case."""
    return 2 if precision in ("fp16", "bf16") else 4


def tensor(*shape: int, precision: str, channels_last: bool = False) -> Tensor:
    """Normal random numbers on the GPU."""
    memory = torch.channels_last if channels_last else torch.contiguous_format
    return torch.randn(shape, device="cuda", dtype=dtype_of(precision)).to(memory_format=memory)


def backward_of(output: Tensor, inputs: list[Tensor]) -> Step:
    """The backward pass alone; the forward pass has been done."""
    gradient = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)
