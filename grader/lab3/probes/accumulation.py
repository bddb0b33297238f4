"""Probe of Lab 3's gradient accumulation: final weights, and the bytes that the ranks reduced on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from grader.lab3.probes.training import DDP
from grader.shared.probes.collectives import Collectives
from grader.shared.probes.ranks import group, half_squares
from grader.shared.probes.support import fields
from labkit.results import AccumulationResult

_kept: list[object] = []


def accumulate(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    sizes: Sequence[Sequence[int]],
    steps: int,
    rate: float,
    tokens: bool = False,
) -> dict[str, Any]:
    """`train_with_accumulation` on this rank's batches (`sizes[rank]`, the ranks' samples one after the other).

    A linear model in float64: half squared distances, or with `tokens` a classifier of each token [samples, length,
    features] whose targets may be -100. One process alone works without a process group.
    """
    torch.set_num_threads(1)
    run = student.module(DDP).train_with_accumulation
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
    model.weight.data = weight.double().clone()
    start = sum(sum(rank) for rank in sizes[: student.rank])
    own = list(sizes[student.rank])
    part = slice(start, start + sum(own))
    wanted = targets[part] if tokens else targets[part].double()
    loader = list(zip(inputs[part].double().split(own), wanted.split(own), strict=True))

    def of_tokens(outputs: Tensor, classes: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), classes.flatten())

    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    criterion = of_tokens if tokens else half_squares

    def call(trained: nn.Module) -> tuple[Any, int]:
        with Collectives() as seen:
            result = run(trained, loader, steps, optimizer=optimizer, criterion=criterion)
        return result, seen.reduced_bytes

    if student.ranks == 1:
        result, reduced = call(model)
    else:
        with group(student):
            replica = DistributedDataParallel(model)
            _kept.append(replica)
            result, reduced = call(replica)
    return {
        "result": fields(result, AccumulationResult, "train_with_accumulation()"),
        "weight": model.weight.detach(),
        "reduced_bytes": reduced,
        "gradient_bytes": sum(parameter.nbytes for parameter in model.parameters()),
    }
