"""Parameters, groups and gradients of a case, made of flat values: for the submission's optimizer and for a whole one.

Imports nothing of `grader`: what this module makes is handed to submissions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from grader.sharding.zero.cases import Parameter


class Parameters:
    """The parameters of a case, on the GPU."""

    def __init__(self, case: Sequence[Parameter], values: Tensor) -> None:
        self.case = case
        self.all = [_laid_out(part, entry) for part, entry in zip(self._parts(values), case, strict=True)]

    def _parts(self, values: Tensor) -> list[Tensor]:
        sizes = [torch.Size(entry["shape"]).numel() for entry in self.case]
        parts = values[: sum(sizes)].split(sizes)
        return [part.view(entry["shape"]) for part, entry in zip(parts, self.case, strict=True)]

    def of_group(self, number: int) -> list[nn.Parameter]:
        """The parameters of a group, in the order of the case."""
        return [parameter for parameter, entry in zip(self.all, self.case, strict=True) if entry["group"] == number]

    def set_gradients(self, slopes: Tensor, step: int) -> None:
        """The gradients of a step, of the parameters that are not silent in it."""
        for parameter, part, entry in zip(self.all, self._parts(slopes), self.case, strict=True):
            parameter.grad = None if step in entry["silent"] else part.to(parameter.device, parameter.dtype)

    def flat(self) -> Tensor:
        """All values, in float64, on the CPU."""
        return torch.cat([parameter.detach().cpu().double().reshape(-1) for parameter in self.all])


def _laid_out(values: Tensor, entry: Parameter) -> nn.Parameter:
    tensor = values.to(getattr(torch, entry["dtype"])).cuda()
    if entry["transposed"]:
        tensor = tensor.t().contiguous().t()
    return nn.Parameter(tensor)


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The optimizer class of `torch.optim` of this name."""
    kind: type[torch.optim.Optimizer] = getattr(torch.optim, name)
    return kind
