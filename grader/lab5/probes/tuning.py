"""Probes of Lab 5's tuning: what the student measures of settings, and which of them it takes.

Everything here runs on a virtual GPU with shapes only; times are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from grader.lab5.probes.jobs import maker_of
from grader.shared.probes.endings import refused
from grader.shared.probes.kept import notes
from grader.shared.probes.support import fields, sequence
from labkit.profiling import TrainingJob
from labkit.results import PipelineSettings, TuningPoint

TUNING = "lab5_production.tuning"


def tuned(
    student: Any, *, maker: dict[str, Any], settings: Sequence[dict[str, Any]], steps: int, warmup: int
) -> dict[str, Any]:
    """`tune` over settings, and the bytes on the GPU whenever a job was asked for.

    Without workspaces: before torch 2.15 PyTorch keeps those of cuBLAS, whoever multiplied first.
    """
    module, make = student.module(TUNING), maker_of(**maker)
    note, held = notes()
    use_everything_once(make)

    def watched(each: PipelineSettings) -> TrainingJob:
        by_category = student.gpu.memory_by_category()
        note(sum(size for name, size in by_category.items() if name != "workspaces"))
        return make(each)

    points = sequence(
        module.tune(watched, [PipelineSettings(**each) for each in settings], steps=steps, warmup=warmup), "tune()"
    )
    asked = held()
    return {
        "points": [fields(point, TuningPoint, "tune()") for point in points],
        "held": asked,
        "error": _error_of_a_broken_job(module, make, settings),
    }


def _error_of_a_broken_job(module: Any, make: Callable[[PipelineSettings], TrainingJob], settings: Any) -> str:
    """What comes out of `tune` where the criterion finds targets of a wrong shape."""

    def broken(each: PipelineSettings) -> TrainingJob:
        job = make(each)

        def criterion(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

        job.criterion = criterion
        return job

    try:
        module.tune(broken, [PipelineSettings(**settings[0])], steps=1, warmup=0)
    except Exception as error:
        return type(error).__name__
    return "no error"


def use_everything_once(make: Callable[[PipelineSettings], TrainingJob]) -> None:
    """What a process pays for the first use of an operation is nobody's figure, whatever is measured first."""
    job = make(PipelineSettings())
    job.train(0, *next(job.batches()))
    torch.cuda.synchronize()


def chosen(student: Any, *, points: Sequence[dict[str, Any]], tolerances: Sequence[float | None]) -> dict[str, Any]:
    """`choose` among made-up points, with each tolerance; and among none.

    `exact` is what it takes of one that is half as fast, to the last bit, where half may be lost.
    """
    module = student.module(TUNING)
    made = [TuningPoint(**{**each, "settings": PipelineSettings(**each["settings"])}) for each in points]
    best = []
    for tolerance in tolerances:
        options = {} if tolerance is None else {"tolerance": tolerance}
        best.append(fields(module.choose(made, **options), TuningPoint, "choose()"))
    pair = [
        TuningPoint(settings=PipelineSettings(batch_size=size), samples_per_second=speed, utilization=0.5)
        for size, speed in ((64, 4096.0), (32, 2048.0))
    ]
    exact = fields(module.choose(pair, tolerance=0.5), TuningPoint, "choose()")
    return {"best": best, "exact": exact, "refused": refused(lambda: module.choose([]))}
