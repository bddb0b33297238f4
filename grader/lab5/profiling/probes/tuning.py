"""Probes of Lab 5's tuning: what the student measures of settings, and which of them it takes.

Everything here runs on a virtual GPU with shapes only; times are simulated.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import ModuleType
from typing import cast

import torch

from gradebox.sandbox.probe_loader import Student
from grader.lab5.profiling.cases import Chosen, ChosenReply, PointCase, PointFields, SettingsCase, Tuned, TunedReply
from grader.lab5.profiling.probes.planted_jobs import maker
from grader.shared.probes.endings import refused
from grader.shared.probes.kept import function, notes
from grader.shared.probes.support import fields, sequence
from labkit.profiling import TrainingJob
from labkit.results import PipelineSettings, TuningPoint

TUNING = "lab5_production.tuning"


def tuned(student: Student, inputs: Tuned) -> TunedReply:
    """`tune` over settings, and the bytes on the GPU whenever a job was asked for, and in its steps.

    Without workspaces: before torch 2.15 PyTorch keeps those of cuBLAS, whoever multiplied first.
    """
    module, make, gpu = student.module(TUNING), maker(inputs.maker), student.gpu
    (note, held), (note_beside, beside) = notes(), notes()
    use_everything_once(make)

    def allocated() -> int:
        return sum(size for name, size in gpu.memory_by_category().items() if name != "workspaces")

    @function
    def watched(settings: PipelineSettings) -> TrainingJob:
        note(allocated())
        job = make(settings)
        # Nothing that the job holds may hold the job: then it would stay until the collector comes.
        model, criterion = weakref.ref(job.model), job.criterion

        @function
        def watched_criterion(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            own = [x for each in model().parameters() for x in (each, each.grad) if x is not None]  # type: ignore[union-attr]
            note_beside((settings.batch_size, allocated() - sum(x.nbytes for x in own)))
            return criterion(outputs, targets)

        job.criterion = watched_criterion
        return job

    settings = [PipelineSettings(**case) for case in inputs.settings]
    points = sequence(module.tune(watched, settings, steps=inputs.steps, warmup=inputs.warmup), "tune()")
    bytes_held = held()
    return TunedReply(
        points=[_point_of(point, "tune()") for point in points],
        held=bytes_held,
        beside=beside(),
        error=_error_of_a_broken_job(module, make, inputs.settings[0]),
    )


def _point_of(point: object, what: str) -> PointFields:
    return cast(PointFields, fields(point, TuningPoint, what))


def _error_of_a_broken_job(
    module: ModuleType, make: Callable[[PipelineSettings], TrainingJob], settings: SettingsCase
) -> str:
    """What comes out of `tune` where the criterion finds targets of a wrong shape."""

    def broken(each: PipelineSettings) -> TrainingJob:
        job = make(each)

        def criterion(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

        job.criterion = criterion
        return job

    try:
        module.tune(broken, [PipelineSettings(**settings)], steps=1, warmup=0)
    except Exception as error:
        return type(error).__name__
    return "no error"


def use_everything_once(make: Callable[[PipelineSettings], TrainingJob]) -> None:
    """What a process pays for the first use of an operation is nobody's figure, whatever is measured first."""
    job = make(PipelineSettings())
    job.train(0, *next(job.batches()))
    torch.cuda.synchronize()


def chosen(student: Student, inputs: Chosen) -> ChosenReply:
    """`choose` among made-up points, with each tolerance; and among none.

    `exact` is what it takes of one that is half as fast, to the last bit, where half may be lost.
    """
    module = student.module(TUNING)
    points = [_made_up(case) for case in inputs.points]
    best = []
    for tolerance in inputs.tolerances:
        options = {} if tolerance is None else {"tolerance": tolerance}
        best.append(_point_of(module.choose(points, **options), "choose()"))
    pair = [
        TuningPoint(settings=PipelineSettings(batch_size=size), samples_per_second=speed, utilization=0.5)
        for size, speed in ((64, 4096.0), (32, 2048.0))
    ]
    exact = _point_of(module.choose(pair, tolerance=0.5), "choose()")
    return ChosenReply(best=best, exact=exact, refused=refused(lambda: module.choose([])))


def _made_up(case: PointCase) -> TuningPoint:
    return TuningPoint(
        settings=PipelineSettings(**case["settings"]),
        samples_per_second=case["samples_per_second"],
        utilization=case["utilization"],
    )
