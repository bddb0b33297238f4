"""The truth about Lab 5's settings, measured by ourselves: no other probe imports this. Times are simulated."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch

from grader.lab5.probes.jobs import maker_of
from grader.lab5.probes.tuning import use_everything_once
from labkit.profiling import TrainingJob
from labkit.results import PipelineSettings


def tuned_truth(
    student: Any, *, maker: dict[str, Any], settings: Sequence[dict[str, Any]], steps: int, warmup: int
) -> dict[str, Any]:
    """Settings measured by ourselves: samples per second, and how busy the GPU's own timeline says it is."""
    make, points = maker_of(**maker), []
    punctual = maker_of(**{**maker, "late_batch": 0})
    use_everything_once(make)
    for each in settings:
        points.append(_measured(make(PipelineSettings(**each)), student.gpu, steps, warmup))
        if each["batch_size"] == maker["late_batch"]:  # its profile comes later, when no step is late any more
            _tidy()
            usual = _measured(punctual(PipelineSettings(**each)), student.gpu, steps, warmup)
            points[-1]["utilization"] = usual["utilization"]
        _tidy()
    return {"points": points}


def _tidy() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _measured(job: TrainingJob, gpu: Any, steps: int, warmup: int) -> dict[str, float]:
    batches = job.batches()
    start = 0.0
    for step in range(warmup + steps):
        if step == warmup:
            torch.cuda.synchronize()
            start = gpu.now()
        job.train(step, *next(batches))
    torch.cuda.synchronize()
    seconds = gpu.now() - start
    busy = sum(kernel.seconds for kernel in gpu.timeline if kernel.start >= start and "Memcpy" not in kernel.name)
    return {"samples_per_second": steps * job.batch_size / seconds, "utilization": busy / seconds}
