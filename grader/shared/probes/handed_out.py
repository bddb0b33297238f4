"""What probes hand to a submission as functions: its globals lead to nothing that knows an answer.

Imports nothing of `grader`: whoever holds a function holds its module.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook


class _Context(Protocol):
    """What autograd keeps of one call."""

    back: int
    """Bytes that the backward pass takes."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors until then."""


class _Takes(torch.autograd.Function):
    """Hands on what it gets; takes memory for a while, as an operation does that needs a workspace."""

    @staticmethod
    def forward(ctx: _Context, inputs: torch.Tensor, room: Sequence[int]) -> torch.Tensor:
        kept, forth, ctx.back = room
        inputs.new_empty(forth, dtype=torch.uint8)
        ctx.save_for_backward(inputs.new_empty(kept, dtype=torch.uint8))
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        gradient.new_empty(ctx.back, dtype=torch.uint8)
        return gradient, None


class _Function(nn.Module):
    """A layer without parameters."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.forward = function


def linear(before: int, after: int, *, bias: bool = True) -> nn.Linear:
    """A layer of zeros, for where its numbers do not matter."""
    with torch.device("meta"):
        layer = nn.Linear(before, after, bias=bias)
    layer.weight = nn.Parameter(zeros(after, before))
    if bias:
        layer.bias = nn.Parameter(zeros(after))
    return layer


def zeros(*shape: int) -> Tensor:
    """On the CPU, of pages that nobody has written yet: PyTorch's own would write each. Elsewhere, and of another type,
    where whoever asks has made that the default (`with torch.device("cuda")`)."""
    if torch.get_default_device().type != "cpu" or torch.get_default_dtype() is not torch.float32:
        return torch.zeros(shape)
    return torch.from_numpy(np.zeros(shape, np.float32))


def network(
    widths: Sequence[int], batch: int, room: Sequence[int] = ()
) -> tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]:
    """Makers of a fully connected network with these layer widths, and of a batch for it; all its numbers are zeros.

    Args:
        room: bytes that one of its layers keeps from the forward pass to the backward pass, and takes for a moment in
            either: what no shape of the network tells.
    """

    def create_model() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [linear(before, after), nn.ReLU()]
        if room:
            layers.insert(2, _Function(lambda inputs: _Takes.apply(inputs, room)))
        return nn.Sequential(*layers[:-1])

    def create_batch() -> tuple[torch.Tensor, torch.Tensor]:
        return zeros(batch, widths[0]), torch.zeros(batch, dtype=torch.int64)

    return create_model, create_batch


def square_layers(width: int, layers: int) -> nn.Sequential:
    """Square linear layers without biases, one after the other."""
    return nn.Sequential(*(linear(width, width, bias=False) for _ in range(layers)))


def waiting_batches(
    samples: int, width: int, load_seconds: float, first: Sequence[float] = ()
) -> Iterator[tuple[Tensor, Tensor]]:
    """A batch that takes its time, in the host's seconds, to come; the first ones take times of their own."""
    inputs, targets = zeros(samples, width), zeros(samples, width)
    for took in itertools.chain(first, itertools.repeat(load_seconds)):
        time.sleep(took)
        yield inputs, targets


@contextmanager
def slow_optimizers(cycles: int) -> Iterator[None]:
    """Each step of any optimizer keeps the GPU busy for so much longer, however it is implemented."""

    def work(*_: object) -> None:
        torch.cuda._sleep(cycles)

    handle = register_optimizer_step_pre_hook(work)
    try:
        yield
    finally:
        handle.remove()
