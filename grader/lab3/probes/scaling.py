"""Probes of Lab 3's scaling analysis: what it says of synthetic measurements, and of steps whose time is known.

What knows those times is a module that is not imported here (`lab3_scaling_truth`). Everything here is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from grader.shared.probes.handed_out import square_layers, waiting_batches
from grader.shared.probes.support import fields, plain
from labkit.results import ScalingPoint, StepProfile

SCALING = "lab3_distributed.scaling_analysis"


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


def slow_down(student: Any, factors: Sequence[float]) -> None:
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
    slow_down(student, slowdowns)
    told = student.module(SCALING).measure_rank(
        student.rank,
        student.ranks,
        f"{student.rendezvous}-measure",
        kind=kind,
        batch_size=batch_size,
        device="cuda",
        model=square_layers(width, layers),
        batches=waiting_batches(own, width, load_seconds[student.rank]),
        steps=steps,
    )
    return {"point": fields(told, ScalingPoint, "measure_rank()"), "in_group": dist.is_initialized()}
