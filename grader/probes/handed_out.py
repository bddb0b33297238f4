"""What probes hand to a submission as functions: its globals lead to nothing that knows an answer.

Imports nothing of `grader`: whoever holds a function holds its module.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def network(widths: Sequence[int], batch: int) -> tuple[Callable[[], nn.Module], Callable[[], Any]]:
    """Makers of a fully connected network with these layer widths, and of a batch for it."""

    def create_model() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def create_batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch, widths[0]), torch.randint(0, widths[-1], (batch,))

    return create_model, create_batch


def square_layers(width: int, layers: int) -> nn.Sequential:
    """Square linear layers without biases, one after the other."""
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def waiting_batches(samples: int, width: int, load_seconds: float) -> Iterator[tuple[Tensor, Tensor]]:
    """A batch that takes its time, in the host's seconds, to come."""
    inputs, targets = torch.zeros(samples, width), torch.zeros(samples, width)
    while True:
        time.sleep(load_seconds)
        yield inputs, targets
