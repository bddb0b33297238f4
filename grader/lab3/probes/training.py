"""Probes of Lab 3's training: which samples each rank went through, what the replicas became.

Each runs in every rank. They look at what any way of training must do: samples that pass the model, parameters at the
end. Joining, accumulation, checkpoints, scaling and started programs have modules
of their own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from grader.shared.probes.calls import if_accepted
from grader.shared.probes.collectives import Collectives
from grader.shared.probes.kept import notes
from grader.shared.probes.ranks import (
    GPU_TIMEOUT_SECONDS,
    TIMEOUT_SECONDS,
    Indexed,
    group,
    half_squares,
    numbered,
)
from grader.shared.probes.support import fields, plain
from labkit import data, models
from labkit.device import open_device
from labkit.results import DdpTraining

DDP = "lab3_distributed.ddp_training"
DEBUGGING = "lab3_distributed.ddp_debugging"
_MESSAGE = 8000
"""A loader's worker processes tell their whole traceback, and what it was about at its end."""

NAP_SECONDS = 0.05
"""In the first forward pass; a clock of processor time does not see it."""

_kept: list[object] = []
"""A DistributedDataParallel that dies after its process group hangs now and then: what may hold one lives on here."""


class Regression(nn.Module):
    """A linear model with a buffer. The first number of each input is the sample's; it is only noted.

    In training it draws random numbers as dropout does, and ignores them unless `dropout` is given; and it multiplies
    its inputs by `factors`, one for each forward pass, of which no other rank knows. Its first forward pass takes
    `nap_seconds` longer, in which no processor is used.
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
        self.moments: list[float] = []
        """When forward passes began and ended, by the host's clock."""
        self.patience = 0.0
        """Seconds that the process group waits for a rank, as it was in the first forward pass on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        self.moments.append(time.perf_counter())
        if len(self.moments) == 1:
            self.patience = 0.0 if x.is_cuda else _patience()
            time.sleep(self.nap_seconds)
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
    """Seconds that a collective of the process group waits before it raises; 0 where there is none to ask."""
    if not dist.is_initialized():
        return 0.0
    backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    return float(backend.options._timeout.total_seconds())


def flat(module: nn.Module) -> Tensor:
    """All parameters in one float64 tensor."""
    return torch.cat([parameter.detach().cpu().double().flatten() for parameter in module.parameters()])


def on_cpu(student: Any) -> dict[str, Any]:
    """`train` alone, on the CPU of a machine that has a GPU: what it says of its device.

    And what it says of the accuracy, beside the truth, by which of the two data sets are given.
    """
    torch.set_num_threads(1)
    run = student.module(DDP).train
    samples = [(torch.full((4,), float(number)), torch.tensor(number % 2)) for number in range(8)]
    tests = data.load("digits", split="test")
    few = torch.utils.data.Subset(tests, range(0, len(tests), 7))
    accuracies = {}
    with open_device("vgpu:T4"):
        told = run(0, 1, f"{student.rendezvous}-cpu", device="cpu", model=nn.Linear(4, 2), dataset=samples, epochs=1)
        cases: list[tuple[str, dict[str, Any], Any]] = [
            ("neither", {}, tests),
            ("test_dataset", {"test_dataset": few}, few),
        ]
        for name, given, truth in cases:
            model = models.mlp()
            address = f"{student.rendezvous}-{name}"
            said = run(0, 1, address, device="cpu", model=model, epochs=1, batch_size=256, **given)
            inputs, targets = (torch.stack([torch.as_tensor(one) for one in part]) for part in zip(*truth, strict=True))
            with torch.no_grad():
                right = model.float().eval()(inputs).argmax(dim=1) == targets
            accuracies[name] = [fields(said, DdpTraining, "train()")["accuracy"], float(right.double().mean())]
    seen = fields(told, DdpTraining, "train()")
    return {"device": seen["device"], "without_tests": seen["accuracy"], "accuracies": accuracies}


def train(
    student: Any,
    *,
    weights: Tensor,
    shifts: Tensor,
    inputs: Tensor,
    targets: Tensor,
    arguments: dict[str, Any],
    factors: Sequence[Sequence[float]],
    classes: bool = False,
    tests: int = 0,
    again: Sequence[dict[str, Any]] = (),
    kind: str = "cpu",
    dtype: str = "float64",
    broken: int | None = None,
    damage: str = "damaged",
    function: str = f"{DDP}.train",
) -> dict[str, Any]:
    """`train` with a model of this rank's own weights in `dtype`; what passed it, what it became, and how it ended.

    The model multiplies its inputs by this rank's `factors`. Sample `broken` cannot be read; the error says that it is
    `damage`. With `classes` the number of a target's largest value is its class, and no criterion is given. The last
    `tests` samples are the test set, if there are any. Then the same once more for each of `again`, arguments that
    differ, with models that are in evaluation mode beforehand; of those, what passed the model. Where the ranks meet
    the environment says; with "by_address" among the arguments an `init_method` does.
    """
    torch.set_num_threads(1)
    module, _, name = function.rpartition(".")
    debugging = module == DEBUGGING
    own_dtype = getattr(torch, dtype)
    labels = targets.argmax(dim=1) if classes else targets.to(own_dtype)
    learned = len(inputs) - tests
    samples = numbered(inputs[:learned]).to(own_dtype)
    dataset = Indexed(samples, labels[:learned], broken=broken, damage=damage)
    extra: dict[str, Any] = {} if classes else {"criterion": half_squares}
    if tests:
        extra["test_dataset"] = Indexed(numbered(inputs[learned:]).to(own_dtype), labels[learned:])
    occupied = occupy_usual_ports(student.rank) if debugging else []
    port = int(os.environ["MASTER_PORT"]) + 1  # the sandbox's is one of the usual ones
    run = getattr(student.module(module), name)
    wait = GPU_TIMEOUT_SECONDS if kind == "cuda" and student.gpu is None else TIMEOUT_SECONDS
    plumbing = if_accepted(run, timeout_seconds=wait + student.ranks)
    if kind != ("cuda" if torch.cuda.is_available() else "cpu"):
        extra["device"] = kind

    def call(model: Regression, number: int, changed: dict[str, Any]) -> Any:
        changed = dict(changed)
        os.environ["MASTER_PORT"] = str(port + number)  # one for each: who is slow to leave meets nobody else
        if changed.pop("by_address", False):
            changed["init_method"] = f"{student.rendezvous}-{number}"
        return run(
            student.rank,
            student.ranks,
            model=model,
            dataset=dataset,
            **plumbing,
            **extra,
            **{**arguments, **changed},
        )

    def made(nap_seconds: float = 0.0) -> Regression:
        torch.manual_seed(student.rank + 1)  # what was drawn before must not matter
        _kept.append(
            Regression(
                weights[student.rank],
                shifts[student.rank],
                unused=debugging,
                factors=factors[student.rank],
                nap_seconds=nap_seconds,
                dtype=own_dtype,
            )
        )
        model: Any = _kept[-1]
        return model  # type: ignore[no-any-return]

    model = made(NAP_SECONDS)
    result = error = None
    carried = Collectives()
    start = time.perf_counter()
    try:
        with carried:
            result = call(model, 0, {})
    except Exception as caught:
        _kept.append(caught)
        if broken is None or isinstance(caught, NotImplementedError):
            raise
        error = {"type": type(caught).__name__, "message": str(caught)[:_MESSAGE]}
    whole_seconds = time.perf_counter() - start
    in_group = dist.is_initialized()
    others = []
    for number, changed in enumerate(again, start=1):
        other = made()
        other.eval()  # training puts it into training mode
        call(other, number, changed)
        others.append({"samples": other.samples, "draws": other.draws})
    _kept.append(occupied)
    return {
        "result": None if result is None else fields(result, DdpTraining, f"{name}()"),
        "error": error,
        "in_group": in_group,
        "samples": model.samples,
        "carried_bytes": carried.carried_bytes,
        "gradient_bytes": model.linear.weight.nbytes,
        "draws": model.draws,
        "again": others,
        "weight": model.linear.weight.detach().cpu(),
        "shift": model.get_buffer("shift").cpu(),
        "place": str(model.linear.weight.device),
        "dtype": plain(model.linear.weight.dtype, ""),
        "patience": model.patience,
        "least_seconds": model.moments[-1] - model.moments[0] if model.moments else 0.0,
        "whole_seconds": whole_seconds,
    }


def occupy_usual_ports(rank: int) -> list[socket.socket]:
    """Listen where torchrun's defaults and PyTorch's tutorials meet, as other jobs on this machine would."""
    listeners = []
    for port in (29500, 12355) if rank == 0 else ():
        listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
        with contextlib.suppress(OSError):  # then somebody else does
            listener.bind(("", port))
            listener.listen()
        listeners.append(listener)
    return listeners


class _Constant(nn.Module):
    """A classifier that says what its inputs say; with a buffer, as batch norm has, and dropout.

    The first number of each input is the sample's. Of the samples that are `turned` on this rank it says the next
    class, so that nobody but this rank knows how many it gets right here.
    """

    def __init__(self, classes: int, turned: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(classes, classes, bias=False)
        self.linear.weight.data = torch.eye(classes)
        self.dropout = nn.Dropout(0.9)
        self.register_buffer("batches", torch.zeros(1))
        self.turned = turned  # no buffer: those are made equal
        self._note, self.samples = notes()

    def forward(self, x: Tensor) -> Tensor:
        numbers = x[:, 0].round().long()
        quiet = not any(module.training for module in self.modules()) and not torch.is_grad_enabled()
        self._note([quiet, numbers.tolist()])
        output: Tensor = self.linear(self.dropout(x[:, 1:]))
        return torch.where(self.turned[numbers].unsqueeze(1), output.roll(1, dims=1), output)


def evaluate(student: Any, *, cases: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    """`evaluate` by all ranks with a replicated and with a plain model, and by this rank alone, of each case's samples;
    then of none.

    A case has `logits`, `targets`, `batch_size`, and `turned[rank]`, which says where the models of the ranks differ.
    Each time: what it told, which samples passed the model on this rank, in which batches, whether each batch did so in
    evaluation mode and without gradients, and whether all modules had changed their mode afterwards. Before, the
    replicated model is in training mode but for one of its parts, the plain one the other way round. Alone the model is
    on a device of this `kind`, which is told every other time; the samples are on the CPU.
    """
    torch.set_num_threads(1)
    module = student.module(DDP)
    with group(student):
        together = [_evaluated(student, module, replicated=True, **case) for case in cases]
    alone = [
        _evaluated(student, module, replicated=False, kind=kind, told=bool(index % 2), **case)
        for index, case in enumerate(cases)
    ]
    model = _Constant(2, torch.zeros(1).bool())
    try:
        module.evaluate(model, Indexed(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)), batch_size=2)
    except Exception as error:
        refused = isinstance(error, ValueError)
    else:
        refused = False
    return {
        "cases": [{"together": those, "alone": one} for those, (one,) in zip(together, alone, strict=True)],
        "refused": refused,
    }


def _evaluated(
    student: Any,
    module: Any,
    *,
    logits: Tensor,
    targets: Tensor,
    turned: Tensor,
    batch_size: int,
    replicated: bool,
    kind: str = "cpu",
    told: bool = False,
) -> list[dict[str, Any]]:
    model = _Constant(logits.shape[1], turned[student.rank].bool().to(kind)).to(kind)
    where = {"device": model.turned.device} if told else {}
    numbers = torch.arange(len(logits), dtype=logits.dtype).unsqueeze(1)
    dataset = Indexed(torch.cat([numbers, logits], dim=1), targets)

    def call(which: nn.Module, *, training: bool) -> dict[str, Any]:
        which.train(training)
        model.dropout.train(not training)
        modes = [each.training for each in which.modules()]
        before = len(model.samples())
        share = plain(module.evaluate(which, dataset, batch_size=batch_size, **where), "evaluate()")
        batches = model.samples()[before:]
        return {
            "told": share,
            "samples": [number for _, batch in batches for number in batch],
            "batches": [len(batch) for _, batch in batches],
            "quiet": all(quiet for quiet, _ in batches),
            "modes_kept": [each.training for each in which.modules()] == modes,
        }

    if not replicated:
        return [call(model, training=True)]
    replica = DistributedDataParallel(model)
    seen = [call(replica, training=True), call(model, training=False)]
    _kept.append(replica)
    return seen
