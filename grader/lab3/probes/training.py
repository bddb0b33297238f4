"""Probes of Lab 3's training: who joined, which samples each rank went through, what the replicas became.

Each runs in every rank. They look at what any way of training must do: samples that pass the model, parameters at the
end. Accumulation, checkpoints, scaling and started programs have modules of their own.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gradebox.sandbox.student import WrongReturn
from grader.shared.probes.collectives import Collectives
from grader.shared.probes.kept import notes
from grader.shared.probes.ranks import TIMEOUT_SECONDS, Indexed, group, half_squares, numbered
from grader.shared.probes.support import fields, plain
from labkit.results import DdpTraining

DDP = "lab3_distributed.ddp_training"
DEBUGGING = "lab3_distributed.ddp_debugging"
_MESSAGE = 8000
"""A loader's worker processes tell their whole traceback, and what it was about at its end."""

_kept: list[object] = []
"""A DistributedDataParallel that dies after its process group hangs now and then: what may hold one lives on here."""


class Regression(nn.Module):
    """A linear model with a buffer, in float64. The first number of each input is the sample's; it is only noted.

    In training it draws random numbers as dropout does, and ignores them unless `dropout` is given; and it multiplies
    its inputs by `factors`, one for each forward pass, of which no other rank knows.
    """

    def __init__(
        self,
        weight: Tensor,
        shift: Tensor,
        *,
        dropout: float = 0.0,
        unused: bool = False,
        factors: Sequence[float] = (),
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
        self.linear.weight.data = weight.double().clone()
        self.register_buffer("shift", shift.double().clone())
        if unused:
            self.spare = nn.Linear(3, 2, dtype=torch.float64)
        self.dropout, self.factors = dropout, factors
        self.samples: list[list[int]] = []
        self.draws: list[list[float]] = []

    def forward(self, x: Tensor) -> Tensor:
        numbers, x = x[:, 0], x[:, 1:]
        if self.training:
            if len(self.samples) < len(self.factors):
                x = x * self.factors[len(self.samples)]
            self.samples.append([round(number) for number in numbers.tolist()])
            self.draws.append(functional.dropout(torch.ones(16), 0.5).tolist())
            x = functional.dropout(x, self.dropout)
        shift = self.get_buffer("shift")
        output: Tensor = self.linear(x) + shift
        return output


def flat(module: nn.Module) -> Tensor:
    """All parameters in one float64 tensor."""
    return torch.cat([parameter.detach().cpu().double().flatten() for parameter in module.parameters()])


def setup(student: Any, *, kind: str, ways: Sequence[str]) -> dict[str, Any]:
    """Join and leave once for each way to meet: "file", "tcp" or "environment"; then what must be refused."""
    module = student.module(DDP)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    environment = {name: os.environ.pop(name) for name in ("MASTER_ADDR", "MASTER_PORT")}
    port = int(environment["MASTER_PORT"]) + 1  # beside the usual one, which another job has taken
    environment["MASTER_PORT"] = str(port)
    _kept.append(_occupy_usual_ports(student.rank))
    seen = []
    for way in ways:
        address: str | None = f"{student.rendezvous}-{way}"
        if way == "tcp":
            address = f"tcp://127.0.0.1:{port + 1}"
        elif way == "environment":
            os.environ.update(environment)
            address = None
        own = module.setup(
            student.rank, student.ranks, init_method=address, device=kind, timeout_seconds=TIMEOUT_SECONDS
        )
        total = torch.ones(1, device=own)
        try:
            dist.all_reduce(total)
        except RuntimeError as error:
            raise WrongReturn(f"after setup() a collective on {own} fails: {str(error)[:300]}") from error
        seen.append(
            {
                "device": plain(own, "setup()"),
                "current": torch.cuda.current_device() if kind == "cuda" else None,
                "backend": str(dist.get_backend()),
                "place": [dist.get_rank(), dist.get_world_size()],
                "sum": float(total.item()),
            }
        )
        module.cleanup()
        seen[-1]["left"] = not dist.is_initialized()
    for name in environment:
        os.environ.pop(name, None)
    module.cleanup()  # harmless where there is no group
    refused = []
    for rank, address in ((student.rank, None), (student.ranks, f"{student.rendezvous}-wrong")):
        try:
            module.setup(rank, student.ranks, init_method=address, device=kind, timeout_seconds=1.0)
        except ValueError:
            refused.append(True)
        except Exception:
            refused.append(False)
        else:
            refused.append(False)
    return {"seen": seen, "refused": refused, "gpus": torch.cuda.device_count()}


def train(
    student: Any,
    *,
    weights: Tensor,
    shifts: Tensor,
    inputs: Tensor,
    targets: Tensor,
    arguments: dict[str, Any],
    factors: Sequence[Sequence[float]],
    broken: int | None = None,
    damage: str = "damaged",
    function: str = f"{DDP}.train",
) -> dict[str, Any]:
    """`train` with a model of this rank's own weights; what passed it, what it became, and how it ended.

    The model multiplies its inputs by this rank's `factors`. Sample `broken` cannot be read; the error says that it is
    `damage`.
    """
    torch.set_num_threads(1)
    module, _, name = function.rpartition(".")
    debugging = module == DEBUGGING
    model = Regression(weights[student.rank], shifts[student.rank], unused=debugging, factors=factors[student.rank])
    # The script of Task 3.5 classifies, so the number of the target's largest value is its class.
    labels = targets.argmax(dim=1) if debugging else targets.double()
    dataset = Indexed(numbered(inputs), labels, broken=broken, damage=damage)
    extra: dict[str, Any] = {} if debugging else {"criterion": half_squares}
    address = f"{student.rendezvous}-train"
    occupied = _occupy_usual_ports(student.rank) if debugging else []
    run = getattr(student.module(module), name)
    result = error = None
    carried = Collectives()
    try:
        with carried:
            result = run(
                student.rank,
                student.ranks,
                address,
                device="cpu",
                model=model,
                dataset=dataset,
                timeout_seconds=TIMEOUT_SECONDS,
                **extra,
                **arguments,
            )
    except Exception as caught:
        _kept.append(caught)
        if broken is None or isinstance(caught, NotImplementedError):
            raise
        error = {"type": type(caught).__name__, "message": str(caught)[:_MESSAGE]}
    _kept.extend([model, occupied])
    return {
        "result": None if result is None else fields(result, DdpTraining, f"{name}()"),
        "error": error,
        "in_group": dist.is_initialized(),
        "samples": model.samples,
        "carried_bytes": carried.carried_bytes,
        "gradient_bytes": model.linear.weight.nbytes,
        "draws": model.draws[:3],
        "weight": model.linear.weight.detach(),
        "shift": model.get_buffer("shift"),
    }


def _occupy_usual_ports(rank: int) -> list[socket.socket]:
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
        self._note(numbers.tolist())
        output: Tensor = self.linear(self.dropout(x[:, 1:]))
        return torch.where(self.turned[numbers].unsqueeze(1), output.roll(1, dims=1), output)


def evaluate(student: Any, *, logits: Tensor, targets: Tensor, turned: Tensor, batch_size: int) -> dict[str, Any]:
    """`evaluate` by all ranks with a replicated and with a plain model, and by this rank alone.

    Each time: what it told, and which samples passed the model on this rank. `turned[rank]` says where the models of
    the ranks differ.
    """
    torch.set_num_threads(1)
    module = student.module(DDP)
    model = _Constant(logits.shape[1], turned[student.rank].bool())
    numbers = torch.arange(len(logits), dtype=logits.dtype).unsqueeze(1)
    dataset = Indexed(torch.cat([numbers, logits], dim=1), targets)

    def call(which: nn.Module) -> dict[str, Any]:
        before = len(model.samples())
        told = plain(module.evaluate(which, dataset, batch_size=batch_size), "evaluate()")
        return {"told": told, "samples": [number for batch in model.samples()[before:] for number in batch]}

    with group(student):
        replica = DistributedDataParallel(model)
        replica.train()
        together = [call(which) for which in (replica, model)]
        training = model.training
        del replica
    return {"together": together, "alone": call(model), "training": training}
