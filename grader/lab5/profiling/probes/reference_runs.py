"""The jobs of Lab 5's profiling and tuning, made and timed by ourselves: no other probe imports this.

Everything here runs on a virtual GPU with shapes only; times are simulated.
"""

from __future__ import annotations

import gc
from dataclasses import replace

import torch

from gradebox.sandbox.probe_loader import Student
from grader.lab5.profiling.cases import (
    MeasuredPoint,
    PlantedReference,
    Span,
    TimelineCase,
    TunedReference,
    TunedReferenceReply,
)
from grader.lab5.profiling.probes.planted_jobs import maker, planted_job
from grader.lab5.profiling.probes.tuning import use_everything_once
from labkit.profiling import TrainingJob
from labkit.results import PipelineSettings

_UNRECORDED = 3
"""Steps before the recorded ones: the docstring's WAIT and WARMUP."""


def planted(student: Student, inputs: PlantedReference) -> TimelineCase:
    """The same steps made by ourselves: intervals of what the device and the host did, in seconds."""
    job = planted_job(inputs.job)
    batches = job.batches()
    regions: dict[str, list[Span]] = {"data": [], "transfer": []}
    start = 0.0
    for step in range(_UNRECORDED + inputs.steps):
        if step == _UNRECORDED:
            torch.cuda.synchronize()
            start = student.gpu.now()
        begin = student.gpu.now()
        features, targets = next(batches)
        loaded = student.gpu.now()
        features, targets = features.cuda(), targets.cuda()
        moved = student.gpu.now()
        regions["data"].append((begin, loaded))
        regions["transfer"].append((loaded, moved))
        job.optimizer.zero_grad()
        loss = job.criterion(job.model(features), targets)
        loss.backward()
        job.optimizer.step()
        if job.after_step is not None:
            job.after_step(step, job.model, loss)
    torch.cuda.synchronize()
    spans: dict[str, list[Span]] = {"kernels": [], "copies_in": [], "copies_out": []}
    for kernel in student.gpu.timeline:
        into = "HtoD" in kernel.name, "DtoH" in kernel.name
        name = "copies_in" if into[0] else "copies_out" if into[1] else "kernels"
        spans[name].append((kernel.start, kernel.end))
    waits = [(s.start, s.end) for s in student.gpu.clock.spans if s.kind == "wait" and s.name.startswith("cuda")]
    return TimelineCase(
        start=start,
        stop=student.gpu.now(),
        steps=inputs.steps,
        kernels=spans["kernels"],
        copies_in=spans["copies_in"],
        copies_out=spans["copies_out"],
        waits=waits,
        regions=regions,
    )


def tuned(student: Student, inputs: TunedReference) -> TunedReferenceReply:
    """Settings measured by ourselves: samples per second, and how busy the GPU's own timeline says it is."""
    make, points = maker(inputs.maker), []
    punctual = maker(replace(inputs.maker, late_batch=0))
    use_everything_once(make)
    for case in inputs.settings:
        settings = PipelineSettings(**case)
        point = _measured(student, make(settings), inputs)
        if settings.batch_size == inputs.maker.late_batch:  # its profile comes later, when no step is late any more
            _tidy()
            usual = _measured(student, punctual(settings), inputs)
            point = replace(point, utilization=usual.utilization)
        points.append(point)
        _tidy()
    return TunedReferenceReply(points=points)


def _tidy() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _measured(student: Student, job: TrainingJob, inputs: TunedReference) -> MeasuredPoint:
    batches, gpu = job.batches(), student.gpu
    start, fetched, first = 0.0, 0.0, gpu.now()
    for step in range(inputs.warmup + inputs.steps):
        if step == inputs.warmup:
            torch.cuda.synchronize()
            start = gpu.now()
        batch = next(batches)
        if step == inputs.warmup:
            fetched = gpu.now()
        job.train(step, *batch)
        if inputs.each_step_waited_for:
            torch.cuda.synchronize()
    launched = gpu.now()
    torch.cuda.synchronize()
    seconds = gpu.now() - start
    busy = sum(kernel.seconds for kernel in gpu.timeline if kernel.start >= start and "Memcpy" not in kernel.name)
    samples = inputs.steps * job.batch_size
    return MeasuredPoint(
        samples_per_second=samples / seconds,
        utilization=busy / seconds,
        by_mistake={
            "clock_stopped_early": samples / (launched - start),
            "warmup_timed": samples / (start + seconds - first),
            "first_batch_untimed": samples / (start + seconds - fetched),
        },
    )
