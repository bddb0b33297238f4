"""The network that is sharded, with weights of a seed; the same for the submission and, elsewhere, for one GPU.

Imports nothing of `grader`: its objects are handed to submissions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from grader.sharding.fsdp.cases import TrainCase

EPSILON = 1e-3


class Block(nn.Module):
    """x + down(gelu(up(x))): two matrix products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.down(functional.gelu(self.up(x)))
        return x + change


class Network(nn.Module):
    """A layer, blocks, a buffer that multiplies, a layer."""

    def __init__(self, features: int, width: int, blocks: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.first = nn.Linear(features, width)
            self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
            self.last = nn.Linear(width, features, bias=False)
            self.register_buffer("factors", torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        output: Tensor = self.last(x * self.get_buffer("factors").to(x.dtype))
        return output


def half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance, mean over samples."""
    return 0.5 * (outputs - targets).square().sum(dim=1).mean()


def make_optimizer(case: TrainCase, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, or SGD, which does not divide by the gradient's own size.

    With eps as it usually is, AdamW makes a whole step of a gradient that is nothing but rounding, so that sums in
    another order would show in the weights; and a gradient that is clipped to the wrong length would not.
    """
    if case["optimizer"] == "SGD":
        return torch.optim.SGD(model.parameters(), lr=case["lr"], momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=case["lr"], eps=EPSILON)
