"""The truth about the jobs of Lab 5's profiling, made and timed by ourselves: no other probe imports this.

Everything here runs on a virtual GPU with shapes only; times are simulated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from grader.lab5.probes.jobs import job_of
from grader.lab5.probes.profiling import replicated
from grader.shared.probes.ranks import group
from labkit.profiling import REGIONS, TrainingJob

_UNRECORDED = 3
"""Steps before the recorded ones: the docstring's WAIT and WARMUP."""


def planted_truth(student: Any, *, job: dict[str, Any], steps: int) -> dict[str, Any]:
    """The same steps made by ourselves: intervals of what the device and the host did, in seconds."""
    made = job_of(**job)
    batches = made.batches()
    regions: dict[str, list[list[float]]] = {"data": [], "transfer": []}
    start = 0.0
    for step in range(_UNRECORDED + steps):
        if step == _UNRECORDED:
            torch.cuda.synchronize()
            start = student.gpu.now()
        moments = [student.gpu.now()]
        inputs, targets = next(batches)
        moments.append(student.gpu.now())
        inputs, targets = inputs.cuda(), targets.cuda()
        moments.append(student.gpu.now())
        regions["data"].append(moments[:2])
        regions["transfer"].append(moments[1:])
        made.optimizer.zero_grad()
        loss = made.criterion(made.model(inputs), targets)
        loss.backward()
        made.optimizer.step()
        if made.after_step is not None:
            made.after_step(step, made.model, loss)
    torch.cuda.synchronize()
    spans: dict[str, list[list[float]]] = {"kernels": [], "copies_in": [], "copies_out": []}
    for kernel in student.gpu.timeline:
        into = "HtoD" in kernel.name, "DtoH" in kernel.name
        name = "copies_in" if into[0] else "copies_out" if into[1] else "kernels"
        spans[name].append([kernel.start, kernel.end])
    waits = [[s.start, s.end] for s in student.gpu.clock.spans if s.kind == "wait" and s.name.startswith("cuda")]
    return {"start": start, "stop": student.gpu.now(), **spans, "waits": waits, "regions": regions}


def breakdown_truth(student: Any, *, job: dict[str, Any], steps: int, warmup: int) -> dict[str, Any]:
    """The same, measured by ourselves."""
    return {"parts": _parts(job_of(**job), steps, warmup)}


def _parts(job: TrainingJob, steps: int, warmup: int) -> dict[str, float]:
    batches, rows = job.batches(), []

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    for step in range(warmup + steps):
        moments = [now()]
        inputs, targets = next(batches)
        moments.append(now())
        inputs, targets = inputs.cuda(), targets.cuda()
        moments.append(now())
        loss = job.criterion(job.model(inputs), targets)
        moments.append(now())
        job.optimizer.zero_grad()
        loss.backward()
        moments.append(now())
        job.optimizer.step()
        moments.append(now())
        if job.after_step is not None:
            job.after_step(step, job.model, loss)
        rows.append([end - begin for begin, end in pairwise(moments)])
    columns = zip(*rows[warmup:], strict=True)
    return {f"{name}_seconds": statistics.median(column) for name, column in zip(REGIONS, columns, strict=True)}


def communication_truth(student: Any, *, jobs: Sequence[dict[str, Any]], steps: int, warmup: int) -> dict[str, Any]:
    """The same, measured by ourselves; and the parts of the steps with exchange."""
    seen: dict[str, Any] = {"parts": [], "exchanged": []}
    with group(student, "truth", backend="nccl"):
        for job in jobs:
            made = replicated(student, job)
            whole = _parts(made, steps, warmup)
            with made.model.no_sync():  # type: ignore[operator]
                parts = _parts(made, steps, warmup)
            made.model = nn.Identity()
            parts["communication_seconds"] = max(0.0, whole["backward_seconds"] - parts["backward_seconds"])
            seen["parts"].append(parts)
            seen["exchanged"].append(whole)
    return seen
