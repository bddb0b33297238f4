"""Probe of Lab 3's gradient accumulation: final weights, and the bytes that the ranks reduced on the way."""

from __future__ import annotations

import contextlib
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
from grader.shared.probes.support import fields_or_reason
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
    """A linear layer with a bias, behind a scale of ones: a `frozen` parameter, or a buffer. Notes in which mode it is
    called. With `classes_second` outputs are [samples, classes, length], as cross entropy wants those of tokens."""

    def __init__(self, weight: Tensor, dtype: torch.dtype, *, frozen: bool, classes_second: bool) -> None:
        super().__init__()
        self.classes_second = classes_second
        features = weight.shape[1] - 1
        scale = torch.ones(features, dtype=dtype)
        if frozen:
            self.scale = nn.Parameter(scale, requires_grad=False)
        else:
            self.register_buffer("scale", scale)
        self.linear = nn.Linear(features, weight.shape[0], dtype=dtype)
        self.linear.weight.data = weight[:, :-1].to(dtype).clone()
        self.linear.bias.data = weight[:, -1].to(dtype).clone()
        self.modes: set[bool] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.modes.add(self.training)
        outputs: Tensor = self.linear(x * self.scale)
        return outputs.transpose(1, 2) if self.classes_second else outputs

    def together(self) -> Tensor:
        """Weight and bias side by side."""
        return torch.cat([self.linear.weight, self.linear.bias.unsqueeze(1)], dim=1).detach().cpu()


def accumulate(student: Any, *, passes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`train_with_accumulation` on this rank's batches, once for each of `passes`.

    A pass has the batches of each rank (`sizes[rank]`, the ranks' samples one after the other) and a linear model in
    `dtype` on a device of this `kind`, a part of which may be `frozen`: half squared distances, or a classifier whose
    targets may be -100: of samples, or with `tokens` of each token [samples, length, features]. With
    `default_optimizer` and `default_criterion` these are not given: without them, and without `device_given`, the call
    has the arguments of the document and no others. Gradients have the value `stale` beforehand, None
    where that is 0, and the model is in evaluation mode. Batches come as a `list`, or as what has a length and no
    index. One process alone works without a process group, if it is not `grouped`. With `device_given` the device is
    told.
    """
    torch.set_num_threads(1)
    told = []
    for index, each in enumerate(passes):
        backend = "nccl" if each["kind"] == "cuda" else "gloo"
        together = each["grouped"] or student.ranks > 1
        with group(student, str(index), backend=backend) if together else contextlib.nullcontext():
            told.append(_pass(student, **each))
    return {"passes": told}


def _pass(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    sizes: Sequence[Sequence[int]],
    steps: int,
    rate: float,
    momentum: float,
    tokens: bool,
    default_optimizer: bool,
    default_criterion: bool,
    kind: str,
    grouped: bool,
    device_given: bool,
    dtype: str,
    frozen: bool,
    stale: float,
    as_list: bool,
) -> dict[str, Any]:
    run = student.module(DDP).train_with_accumulation
    own_dtype = getattr(torch, dtype)
    model = _Linear(weight, own_dtype, frozen=frozen, classes_second=tokens and default_criterion).to(kind)
    start = sum(sum(rank) for rank in sizes[: student.rank])
    own = list(sizes[student.rank])
    part = slice(start, start + sum(own))
    classes = targets.dtype == torch.int64
    wanted = targets[part] if classes else targets[part].to(own_dtype)
    batches = list(zip(inputs[part].to(own_dtype).split(own), wanted.split(own), strict=True))
    loader = batches if as_list else _Batches(batches)
    for parameter in model.linear.parameters():
        parameter.grad = torch.full_like(parameter, stale) if stale else None
    options: dict[str, Any] = {}
    if not default_optimizer:
        options["optimizer"] = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    if not default_criterion:
        options["criterion"] = _of_tokens if tokens else functional.cross_entropy if classes else half_squares
    if device_given:
        options["device"] = str(model.linear.weight.device)
    trained: nn.Module = model
    if student.ranks > 1 or grouped:
        trained = DistributedDataParallel(model)
        _kept.append(trained)
    trained.eval()
    with Collectives() as seen:
        result = run(trained, loader, steps, **options)
    return {
        "result": fields_or_reason(result, AccumulationResult, "train_with_accumulation()"),
        "weight": model.together(),
        "frozen": model.scale.detach().cpu(),
        "modes": sorted(model.modes),
        "reduced_bytes": seen.reduced_bytes,
        "gradient_bytes": sum(parameter.nbytes for parameter in model.linear.parameters()),
    }


def refusals(student: Any) -> dict[str, Any]:
    """Whether `train_with_accumulation` refuses windows without batches."""
    run = student.module(DDP).train_with_accumulation
    batches = [(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))]
    counts = (0, -2)
    return {
        "refused": {str(count): is_refused(functools.partial(run, nn.Linear(3, 2), batches, count)) for count in counts}
    }


def _of_tokens(outputs: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), classes.flatten())
