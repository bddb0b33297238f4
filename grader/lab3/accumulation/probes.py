"""Probe of Lab 3's gradient accumulation: final weights, and the bytes that the ranks reduced on the way."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gradebox.sandbox.observer import SystemReading
from gradebox.sandbox.probe_loader import Student
from grader.lab3.accumulation.cases import Accumulate, AccumulateReply, Pass, PassReply, Refusals, RefusalsReply
from grader.lab3.shared.cases.modules import DDP
from grader.shared.probes.collectives import Collectives, watching_windows
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.loaders import sized_loader
from grader.shared.probes.looks import written_bytes
from grader.shared.probes.ranks import group, half_squares
from grader.shared.probes.support import fields_or_reason
from labkit.results import AccumulationResult

_kept: list[object] = []


class _Linear(nn.Module):
    """A linear layer with a bias, behind a scale of ones: a `frozen` parameter, or a buffer.

    In evaluation mode it multiplies its inputs by a factor, so that who trains in that mode comes to other weights.
    With `classes_second` outputs are [samples, classes, length], as cross entropy wants those of tokens.
    """

    def __init__(
        self, weight: Tensor, dtype: torch.dtype, *, frozen: bool, classes_second: bool, evaluation: float
    ) -> None:
        super().__init__()
        self.classes_second, self.evaluation = classes_second, evaluation
        features = weight.shape[1] - 1
        scale = torch.ones(features, dtype=dtype)
        if frozen:
            self.scale = nn.Parameter(scale, requires_grad=False)
        else:
            self.register_buffer("scale", scale)
        self.linear = nn.Linear(features, weight.shape[0], dtype=dtype)
        self.linear.weight.data = weight[:, :-1].to(dtype).clone()
        self.linear.bias.data = weight[:, -1].to(dtype).clone()

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        outputs: Tensor = self.linear(x if self.training else x * self.evaluation)
        return outputs.transpose(1, 2) if self.classes_second else outputs

    def together(self) -> Tensor:
        """Weight and bias side by side."""
        return torch.cat([self.linear.weight, self.linear.bias.unsqueeze(1)], dim=1).detach().cpu()


def accumulate(student: Student, inputs: Accumulate) -> AccumulateReply:
    """`train_with_accumulation` on this rank's batches, once for each pass.

    Half squared distances, or a classifier whose targets may be -100: those of samples, or of tokens. Without an
    optimizer, a criterion or a device of its own the call has the arguments of the document and no others. The model is
    in evaluation mode beforehand. Batches come as a list, or as what has a length and no index. One process alone works
    without a process group, if the pass is not `grouped`.
    """
    torch.set_num_threads(1)
    replies = []
    for index, case in enumerate(inputs.passes):
        backend = "nccl" if case.kind == "cuda" else "gloo"
        together = case.grouped or student.ranks > 1
        with group(student, str(index), backend=backend) if together else contextlib.nullcontext():
            replies.append(_pass(student, case))
    return AccumulateReply(passes=replies, loopback_bytes=SystemReading("loopback_bytes"))  # type: ignore[arg-type]


def _pass(student: Student, case: Pass) -> PassReply:
    run = student.module(DDP).train_with_accumulation
    dtype = getattr(torch, case.dtype)
    transposed = case.tokens and case.default_criterion
    model = _Linear(case.weight, dtype, frozen=case.frozen, classes_second=transposed, evaluation=case.evaluation).to(
        case.kind
    )
    start = sum(sum(rank) for rank in case.sizes[: student.rank])
    own = case.sizes[student.rank]
    part = slice(start, start + sum(own))
    classes = case.targets.dtype == torch.int64
    targets = case.targets[part] if classes else case.targets[part].to(dtype)
    batches = list(zip(case.inputs[part].to(dtype).split(own), targets.split(own), strict=True))
    loader = batches if case.as_list else sized_loader(len(batches), lambda: iter(batches))
    for parameter in model.linear.parameters():
        parameter.grad = torch.full_like(parameter, case.stale) if case.stale else None
    options: dict[str, object] = {}
    if not case.default_optimizer:
        options["optimizer"] = torch.optim.SGD(model.parameters(), lr=case.rate, momentum=case.momentum)
    if not case.default_criterion:
        options["criterion"] = _of_tokens if case.tokens else functional.cross_entropy if classes else half_squares
    if case.device_given:
        options["device"] = str(model.linear.weight.device)
    trained: nn.Module = model
    if student.ranks > 1 or case.grouped:
        trained = DistributedDataParallel(model)
        _kept.append(trained)
    trained.eval()
    before = written_bytes()
    collectives = Collectives()
    with watching_windows(model, collectives, case.steps, len(own)) as early_bytes, collectives:
        result = run(trained, loader, case.steps, **options)
    after = written_bytes()
    return PassReply(
        result=fields_or_reason(result, AccumulationResult, "train_with_accumulation()"),
        weight=model.together(),
        frozen=model.scale.detach().cpu(),
        reduced_bytes=collectives.reduced_bytes,
        reduced_numbers=collectives.reduced_numbers,
        early_bytes=early_bytes(),
        product_flops=collectives.product_flops,
        written_bytes=None if before is None or after is None else after - before,
    )


def refusals(student: Student, inputs: Refusals) -> RefusalsReply:
    """Whether `train_with_accumulation` refuses windows without batches."""
    run = student.module(DDP).train_with_accumulation
    batches = [(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))]
    return RefusalsReply(
        refused={
            str(count): is_refused(functools.partial(run, nn.Linear(3, 2), batches, count)) for count in inputs.counts
        }
    )


def _of_tokens(outputs: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), classes.flatten())
