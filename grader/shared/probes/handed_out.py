"""What probes hand to a submission as functions: its globals lead to nothing that knows an answer.

Imports nothing of `grader`: whoever holds a function holds its module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


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
