"""The models that Lab 3's ranks train, save and load."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

_TEST_NAPS = 4
"""So many times longer than other forward passes: a clock that stops before the test does not see it."""


class Regression(nn.Module):
    """A linear model with a buffer. The first number of each input is the sample's; it is only noted.

    In training it draws random numbers as dropout does, and ignores them unless `dropout` is given; and it multiplies
    its inputs by `factors`, one for each forward pass, of which no other rank knows. Its first forward pass takes
    `nap_seconds` longer, in which no processor is used, and the first one in evaluation mode several times as long.
    """

    def __init__(
        self,
        weight: Tensor,
        shift: Tensor,
        *,
        dropout: float = 0.0,
        unused: bool = False,
        factors: Sequence[float] = (),
        nap_seconds: float = 0.0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=dtype)
        self.linear.weight.data = weight.to(dtype).clone()
        self.register_buffer("shift", shift.to(dtype).clone())
        if unused:
            self.spare = nn.Linear(3, 2, dtype=dtype)
        self.dropout, self.factors = dropout, factors
        self.nap_seconds = nap_seconds
        self.samples: list[list[int]] = []
        self.draws: list[list[float]] = []
        self.tested = False
        self.moments: list[float] = []
        """When forward passes began and ended, by the host's clock."""
        self.patience = 0.0
        """Seconds that the process group waits for a rank, as it was in the first forward pass on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        self.moments.append(time.perf_counter())
        if len(self.moments) == 1:
            self.patience = 0.0 if x.is_cuda else _patience()
            time.sleep(self.nap_seconds)
        if not (self.training or self.tested):
            time.sleep(_TEST_NAPS * self.nap_seconds)
        self.tested = self.tested or not self.training
        numbers, x = x[:, 0], x[:, 1:]
        if self.training:
            if len(self.samples) < len(self.factors):
                x = x * self.factors[len(self.samples)]
            self.samples.append([round(number) for number in numbers.tolist()])
            self.draws.append(functional.dropout(torch.ones(16), 0.5).tolist())
            x = functional.dropout(x, self.dropout)
        shift = self.get_buffer("shift")
        output: Tensor = self.linear(x) + shift
        self.moments.append(time.perf_counter())
        return output


def _patience() -> float:
    """Seconds that a collective of the process group waits before it raises; 0 if there is no group."""
    if not dist.is_initialized():
        return 0.0
    # Any: the options have no type that PyTorch's stubs know.
    backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    return float(backend.options._timeout.total_seconds())


def flat(module: nn.Module) -> Tensor:
    """All parameters in one float64 tensor."""
    return torch.cat([parameter.detach().cpu().double().flatten() for parameter in module.parameters()])


class Layers(nn.Module):
    """Two layers and two buffers, one of whole numbers; what computes is in float64."""

    def __init__(self, first: Tensor, second: Tensor, *, prefix: str = "layer", layers: int = 2) -> None:
        super().__init__()
        for index in range(layers):
            weight = (first, second)[index % 2]
            layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
            layer.weight.data = weight.double().clone()
            self.add_module(f"{prefix}{index + 1}", layer)
        self.register_buffer("seen", first.double().sum().reshape(1))
        self.register_buffer("count", (first * 1000).long().sum().abs())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x
