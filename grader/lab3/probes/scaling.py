"""Probes of Lab 3's scaling analysis: what it says of synthetic measurements, and of steps whose time is known.

Ranks of a virtual machine share one virtual time, so the seconds of a step are known; everything here is simulated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grader.shared.probes.ranks import group
from grader.shared.probes.support import fields, plain
from labkit.results import ScalingPoint, StepProfile

SCALING = "lab3_distributed.scaling_analysis"
_WARMUP = 2
"""Steps of the truth that are not timed: DistributedDataParallel forms its buckets anew after the first."""


def _profile(values: dict[str, Any]) -> StepProfile:
    return StepProfile(**{name: tuple(numbers) for name, numbers in values.items()})


def _point(values: dict[str, Any]) -> ScalingPoint:
    return ScalingPoint(**{**values, "profile": _profile(values["profile"])})


def analyse(student: Any, *, points: Sequence[dict[str, Any]], kinds: Sequence[str]) -> dict[str, Any]:
    """`speedup` and `efficiency` of made-up points, for each kind; and of points without a single process."""
    module = student.module(SCALING)
    made = [_point(point) for point in points]
    answers = {}
    for kind in kinds:
        answers[kind] = {
            "speedup": plain(dict(module.speedup(made, kind)), f"speedup(points, {kind!r})"),
            "efficiency": plain(dict(module.efficiency(made, kind)), f"efficiency(points, {kind!r})"),
        }
    refused = []
    for function in (module.speedup, module.efficiency):
        try:
            function([point for point in made if point.world_size > 1], kinds[0])
        except ValueError:
            refused.append(True)
        except Exception:
            refused.append(False)
        else:
            refused.append(False)
    return {"answers": answers, "refused": refused}


def shares(student: Any, *, profiles: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`communication_share` of made-up profiles."""
    module = student.module(SCALING)
    return {"shares": [plain(module.communication_share(_profile(each)), "communication_share()") for each in profiles]}


def bottlenecks(student: Any, *, profiles: Sequence[dict[str, Any]], thresholds: Sequence[float]) -> dict[str, Any]:
    """`name_bottleneck` of made-up profiles, each with a threshold (0: none given)."""
    module = student.module(SCALING)
    names = []
    for each, threshold in zip(profiles, thresholds, strict=True):
        options = {"threshold": threshold} if threshold else {}
        names.append(plain(module.name_bottleneck(_profile(each), **options), "name_bottleneck()"))
    return {"names": names}


def _model(width: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def _batches(samples: int, width: int, load_seconds: float) -> Iterator[tuple[Tensor, Tensor]]:
    """A batch that takes its time, in the host's seconds, to come."""
    inputs, targets = torch.zeros(samples, width), torch.zeros(samples, width)
    while True:
        time.sleep(load_seconds)
        yield inputs, targets


def _slow_down(student: Any, factors: Sequence[float]) -> None:
    """Make this rank's GPU slower than the others by its factor."""
    if factors[student.rank] != 1:
        student.gpu.inject_slowdown(factors[student.rank], name="aten::mm", count=1_000_000)


def measured(
    student: Any,
    *,
    kind: str,
    batch_size: int,
    width: int,
    layers: int,
    steps: int,
    load_seconds: Sequence[float],
    slowdowns: Sequence[float],
) -> dict[str, Any]:
    """`measure_rank` of this rank, whose loader and GPU have figures of their own."""
    own = batch_size // student.ranks if kind == "strong" else batch_size
    _slow_down(student, slowdowns)
    told = student.module(SCALING).measure_rank(
        student.rank,
        student.ranks,
        f"{student.rendezvous}-measure",
        kind=kind,
        batch_size=batch_size,
        device="cuda",
        model=_model(width, layers),
        batches=_batches(own, width, load_seconds[student.rank]),
        steps=steps,
    )
    return {"point": fields(told, ScalingPoint, "measure_rank()"), "in_group": dist.is_initialized()}


def truth(
    student: Any,
    *,
    kind: str,
    batch_size: int,
    width: int,
    layers: int,
    steps: int,
    load_seconds: Sequence[float],
    slowdowns: Sequence[float],
) -> dict[str, Any]:
    """The same steps, made and timed by ourselves: whole ones, and their parts without exchange."""
    own = batch_size // student.ranks if kind == "strong" else batch_size
    _slow_down(student, slowdowns)
    torch.cuda.set_device(student.rank)
    with group(student, "truth", backend="nccl"):
        model = _model(width, layers).cuda()
        replica = DistributedDataParallel(model, device_ids=[student.rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batches = _batches(own, width, load_seconds[student.rank])

        def now() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        def times(module: nn.Module) -> tuple[float, float]:
            arrivals, rests = [], []
            for _ in range(_WARMUP + steps):
                start = now()
                inputs, targets = (tensor.cuda() for tensor in next(batches))
                arrived = now()
                optimizer.zero_grad()
                nn.functional.mse_loss(module(inputs), targets).backward()
                optimizer.step()
                arrivals.append(arrived - start)
                rests.append(now() - arrived)
            return statistics.median(arrivals[_WARMUP:]), statistics.median(rests[_WARMUP:])

        whole = sum(times(replica))
        with replica.no_sync():
            data, compute = times(replica)
        del replica
    return {"step_seconds": whole, "data_seconds": data, "compute_seconds": compute}
