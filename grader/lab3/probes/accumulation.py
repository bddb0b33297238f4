"""Probe of Lab 3's gradient accumulation: final weights, and the bytes that the ranks reduced on the way."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from grader.lab3.probes.training import DDP
from grader.shared.probes.collectives import Collectives
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.ranks import group, half_squares
from grader.shared.probes.support import fields
from labkit.results import AccumulationResult

_kept: list[object] = []


class _Batches:
    """Batches that can be gone through again and again and have a length, as those of a DataLoader, and no index."""

    def __init__(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._batches)


class _Linear(nn.Module):
    """A linear layer with a bias in float64, behind a frozen scale of ones; notes in which mode it is called."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        features = weight.shape[1] - 1
        self.scale = nn.Parameter(torch.ones(features, dtype=torch.float64), requires_grad=False)
        self.linear = nn.Linear(features, weight.shape[0], dtype=torch.float64)
        self.linear.weight.data = weight[:, :-1].double().clone()
        self.linear.bias.data = weight[:, -1].double().clone()
        self.modes: set[bool] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.modes.add(self.training)
        outputs: Tensor = self.linear(x * self.scale)
        return outputs

    def together(self) -> Tensor:
        """Weight and bias side by side."""
        return torch.cat([self.linear.weight, self.linear.bias.unsqueeze(1)], dim=1).detach().cpu()


def accumulate(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    sizes: Sequence[Sequence[int]],
    steps: int,
    rate: float,
    momentum: float,
    tokens: bool = False,
    defaults: bool = False,
    kind: str = "cpu",
    stale: float = 0.0,
) -> dict[str, Any]:
    """`train_with_accumulation` on this rank's batches (`sizes[rank]`, the ranks' samples one after the other).

    A linear model in float64 on a device of this `kind`: half squared distances, or with `tokens` a classifier of each
    token [samples, length, features] whose targets may be -100. With `defaults` neither optimizer nor criterion is
    given. Gradients have the value `stale` beforehand, and the model is in evaluation mode. One process alone works
    without a process group.
    """
    torch.set_num_threads(1)
    run = student.module(DDP).train_with_accumulation
    model = _Linear(weight).to(kind)
    start = sum(sum(rank) for rank in sizes[: student.rank])
    own = list(sizes[student.rank])
    part = slice(start, start + sum(own))
    wanted = targets[part] if targets.dtype == torch.int64 else targets[part].double()
    loader = _Batches(list(zip(inputs[part].double().split(own), wanted.split(own), strict=True)))
    for parameter in model.linear.parameters():
        parameter.grad = torch.full_like(parameter, stale)
    options: dict[str, Any] = {}
    if not defaults:
        options["optimizer"] = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        options["criterion"] = _of_tokens if tokens else half_squares

    def call(trained: nn.Module) -> tuple[Any, int]:
        trained.eval()
        with Collectives() as seen:
            result = run(trained, loader, steps, **options)
        return result, seen.reduced_bytes

    refused = {}
    if student.ranks == 1:
        result, reduced = call(model)
        refused = {str(count): is_refused(functools.partial(run, model, loader, count)) for count in (0, -2)}
    else:
        with group(student):
            replica = DistributedDataParallel(model)
            _kept.append(replica)
            result, reduced = call(replica)
    return {
        "result": fields(result, AccumulationResult, "train_with_accumulation()"),
        "weight": model.together(),
        "frozen": model.scale.detach().cpu(),
        "modes": sorted(model.modes),
        "refused": refused,
        "reduced_bytes": reduced,
        "gradient_bytes": sum(parameter.nbytes for parameter in model.linear.parameters()),
    }


def _of_tokens(outputs: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), classes.flatten())
