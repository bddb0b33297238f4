"""Probes of Lab 5's tuning: what the student measures of settings, and which of them it takes.

Everything here runs on a virtual GPU with shapes only; times are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from grader.lab5.probes.jobs import maker_of
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
    return {"points": [fields(point, TuningPoint, "tune()") for point in points], "held": held()}


def use_everything_once(make: Callable[[PipelineSettings], TrainingJob]) -> None:
    """What a process pays for the first use of an operation is nobody's figure, whatever is measured first."""
    job = make(PipelineSettings())
    job.train(0, *next(job.batches()))
    torch.cuda.synchronize()


def chosen(student: Any, *, points: Sequence[dict[str, Any]], tolerances: Sequence[float | None]) -> dict[str, Any]:
    """`choose` among made-up points, with each tolerance; and among none."""
    module = student.module(TUNING)
    made = [TuningPoint(**{**each, "settings": PipelineSettings(**each["settings"])}) for each in points]
    best = []
    for tolerance in tolerances:
        options = {} if tolerance is None else {"tolerance": tolerance}
        best.append(fields(module.choose(made, **options), TuningPoint, "choose()"))
    try:
        module.choose([])
    except ValueError:
        return {"best": best, "refused": True}
    except Exception:
        return {"best": best, "refused": False}
    return {"best": best, "refused": False}
