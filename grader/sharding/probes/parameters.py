"""Parameters, groups and gradients of a case, made of flat values: for the submission's optimizer and for a whole one.

Imports nothing of `grader`: what this module makes is handed to submissions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Parameters:
    """The parameters of a case: `shape`, `dtype`, whether `transposed`, the `group`, in which steps it is `silent`."""

    def __init__(self, case: Sequence[dict[str, Any]], values: Tensor) -> None:
        self.case = case
        self.all = [_laid_out(part, one) for part, one in zip(self._parts(values), case, strict=True)]

    def _parts(self, values: Tensor) -> list[Tensor]:
        sizes = [torch.Size(one["shape"]).numel() for one in self.case]
        return [part.view(one["shape"]) for part, one in zip(values[: sum(sizes)].split(sizes), self.case, strict=True)]

    def of_group(self, number: int) -> list[nn.Parameter]:
        """The parameters of a group, in the order of the case."""
        return [one for one, told in zip(self.all, self.case, strict=True) if told["group"] == number]

    def set_gradients(self, slopes: Tensor, step: int) -> None:
        """The gradients of a step, of the parameters that are not silent in it."""
        for parameter, part, one in zip(self.all, self._parts(slopes), self.case, strict=True):
            parameter.grad = None if step in one["silent"] else part.to(parameter.device, parameter.dtype)

    def flat(self) -> Tensor:
        """All values, in float64, on the CPU."""
        return torch.cat([one.detach().cpu().double().reshape(-1) for one in self.all])


def _laid_out(values: Tensor, one: dict[str, Any]) -> nn.Parameter:
    tensor = values.to(getattr(torch, one["dtype"])).cuda()
    if one["transposed"]:
        tensor = tensor.t().contiguous().t()
    return nn.Parameter(tensor)


def optimizer_class(name: str) -> Any:
    """The optimizer class of `torch.optim` of this name."""
    return getattr(torch.optim, name)
