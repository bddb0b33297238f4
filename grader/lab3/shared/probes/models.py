"""The models that Lab 3's ranks train, save and load."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from grader.shared.probes.facts import is_training
from grader.shared.probes.groups import timeout_of
from grader.shared.probes.kept import in_turn, method
from grader.shared.probes.support import exact

_TEST_NAPS = 4
"""So many times longer than other forward passes: a clock that stops before the test does not see it."""


class ForwardPass(NamedTuple):
    """What a model notes of a forward pass."""

    training: bool
    samples: tuple[int, ...]
    """By number."""
    draws: tuple[float, ...]
    """What dropout drew, in training."""
    begin: float
    """By the host's clock, as is the end."""
    end: float
    patience: float
    """Seconds that the process group waits for a rank, on the CPU; noted in the first pass alone."""


class Regression(nn.Module):
    """A linear model with a buffer, of which the first number of each input is the sample's."""

    def __init__(self, weight: Tensor, shift: Tensor, *, unused: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=dtype)
        self.linear.weight.data = weight.to(dtype).clone()
        self.register_buffer("shift", shift.to(dtype).clone())
        if unused:
            self.spare = nn.Linear(3, 2, dtype=dtype)


def regression(
    weight: Tensor,
    shift: Tensor,
    note: Callable[[ForwardPass], None],
    *,
    dropout: float = 0.0,
    unused: bool = False,
    factors: Sequence[float] = (),
    nap_seconds: float = 0.0,
    hold_up: Callable[[], None] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Regression:
    """A model that notes its forward passes; nothing that it holds leads to the notes.

    In training it draws random numbers as dropout does, and ignores them unless `dropout` is given; and it multiplies
    its inputs by `factors`, one for each forward pass, of which no other rank knows. Its first forward pass takes
    `nap_seconds` longer, in which no processor is used, and the first one in evaluation mode several times as long.
    `hold_up` is called in each.
    """
    next_factor, rest, is_first = in_turn(factors, 1.0), _naps(nap_seconds), in_turn([1.0], 0.0)

    def noting(model: Regression, x: Tensor) -> Tensor:
        begin, patience = time.perf_counter(), patience_of_the_group() if is_first() and not x.is_cuda else 0.0
        training = is_training(model)
        rest(training)
        if hold_up is not None:
            hold_up()
        numbers, x = tuple(round(number) for number in x[:, 0].tolist()), x[:, 1:]
        draws: tuple[float, ...] = ()
        if training:
            x = x * next_factor()
            draws = tuple(functional.dropout(torch.ones(16), 0.5).tolist())
            x = functional.dropout(x, dropout)
        shift = model.get_buffer("shift")
        output: Tensor = model.linear(x) + shift
        note(ForwardPass(training, numbers, draws, begin, time.perf_counter(), patience))
        return output

    class Noting(Regression):
        forward = method(noting)

    return Noting(weight, shift, unused=unused, dtype=dtype)


def _naps(seconds: float) -> Callable[[bool], None]:
    """A function that sleeps the first time, and longer the first time that it is not for training."""
    first, test = in_turn([seconds], 0.0), in_turn([_TEST_NAPS * seconds], 0.0)

    def rest(training: bool) -> None:
        time.sleep(first() + (0.0 if training else test()))

    return rest


def patience_of_the_group() -> float:
    """Seconds that a collective of the process group waits before it raises; 0 if there is no group."""
    if not dist.is_initialized():
        return 0.0
    return timeout_of(dist.distributed_c10d._get_default_group()) or 0.0


def flat(module: nn.Module) -> Tensor:
    """All parameters in one float64 tensor."""
    parameters = [exact(parameter, "a parameter").detach() for parameter in module.parameters()]
    return torch.cat([parameter.cpu().double().flatten() for parameter in parameters])


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
