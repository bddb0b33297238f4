"""Probes of Lab 5's profiling: jobs whose parts take known times, and what the student's functions say of them.

Everything here runs on a virtual GPU with shapes only; times are simulated.
"""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grader.shared.probes.ranks import group
from grader.shared.probes.support import fields, plain
from labkit.profiling import REGIONS, STEP_PREFIX, Timeline, TrainingJob
from labkit.results import DeviceTime, StepBreakdown

PROFILING = "lab5_production.profiling"
_UNRECORDED = 3
"""Steps before the recorded ones: the docstring's WAIT and WARMUP."""


class _Loader:
    """Batches that take their time to come: `load_seconds`, and longer for some at the beginning."""

    def __init__(self, samples: int, width: int, load_seconds: float, slow: Sequence[float] = ()) -> None:
        self.taken = 0
        self._batch = (torch.zeros(samples, width), torch.zeros(samples, width))
        self._seconds, self._slow = load_seconds, list(slow)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            time.sleep(self._slow[self.taken] if self.taken < len(self._slow) else self._seconds)
            self.taken += 1
            yield self._batch


def _model(width: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).cuda()


def _look(step: int, model: nn.Module, loss: Tensor) -> None:
    """Metrics as in the slow pipeline: every gradient's norm, one by one."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.norm().item()


def _job(
    *, samples: int, width: int, layers: int, load_seconds: float, look: bool = False, slow: Sequence[float] = ()
) -> TrainingJob:
    model = _model(width, layers)
    return TrainingJob(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        loader=_Loader(samples, width, load_seconds, slow),
        batch_size=samples,
        device="cuda",
        after_step=_look if look else None,
    )


def _device_time(values: dict[str, Any]) -> DeviceTime:
    return DeviceTime(**values)


def record(student: Any, *, steps: int, seconds: dict[str, float], suffix: str) -> dict[str, Any]:
    """`profile_job` of a job in which the host sleeps for `seconds` in each part; what it made of it, and its trace."""
    torch.zeros(1, device="cuda")
    job = _job(samples=32, width=64, layers=2, load_seconds=seconds["data"])
    calls: list[int] = []
    updates: list[int] = []

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        time.sleep(seconds["forward"])
        return nn.functional.mse_loss(outputs, targets)

    def after_step(step: int, model: nn.Module, loss: Tensor) -> None:
        calls.append(step)
        time.sleep(seconds["after_step"])

    def after_update(*_: Any) -> None:
        updates.append(1)
        time.sleep(seconds["optimizer"])

    job.criterion, job.after_step = criterion, after_step
    job.optimizer.register_step_post_hook(after_update)
    next(iter(job.model.parameters())).register_post_accumulate_grad_hook(lambda _: time.sleep(seconds["backward"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "traces", f"trace{suffix}")
        told = student.module(PROFILING).profile_job(job, steps=steps, trace=path)
        events = _trace(path)
    timeline = fields(told, Timeline, "profile_job()")
    return {
        "taken": job.loader.taken,  # type: ignore[attr-defined]
        "calls": calls,
        "updates": len(updates),
        "steps": timeline["steps"],
        "events": events,
    }


def _trace(path: Path) -> dict[str, list[list[float]]] | None:
    """Start and duration in seconds of the host's regions and steps in a written trace; None where there is none."""
    if not path.is_file():
        return None
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events = document["traceEvents"] if isinstance(document, dict) else document
    found: dict[str, list[list[float]]] = {name: [] for name in (*REGIONS, "step")}
    for event in events:
        name = str(event.get("name"))
        key = "step" if name.startswith(STEP_PREFIX) else name
        if event.get("ph") == "X" and key in found and not str(event.get("cat")).startswith("gpu"):
            found[key].append([float(event["ts"]) * 1e-6, float(event["dur"]) * 1e-6])
    return {name: sorted(spans) for name, spans in found.items()}


def attribute(student: Any, *, timelines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`where_time_goes` and `utilization` of made-up timelines."""
    module = student.module(PROFILING)
    times = []
    for each in timelines:
        values: dict[str, Any] = {
            name: tuple(map(tuple, value)) if isinstance(value, list) else value
            for name, value in each.items()
            if name != "regions"
        }
        regions = {name: tuple(map(tuple, spans)) for name, spans in each["regions"].items()}
        times.append(module.where_time_goes(Timeline(**values, regions=regions)))
    return {
        "times": [fields(each, DeviceTime, "where_time_goes()") for each in times],
        "utilization": [plain(module.utilization(each), "utilization()") for each in times],
    }


def bottlenecks(student: Any, *, times: Sequence[dict[str, float]], targets: Sequence[float | None]) -> dict[str, Any]:
    """`find_bottleneck` of made-up steps, each with a target or the default."""
    module = student.module(PROFILING)
    names = []
    for each, target in zip(times, targets, strict=True):
        options = {} if target is None else {"target": target}
        names.append(plain(module.find_bottleneck(_device_time(each), **options), "find_bottleneck()"))
    return {"names": names}


def planted(student: Any, *, job: dict[str, Any], steps: int) -> dict[str, Any]:
    """What the student's profile says of a job in which something is wrong."""
    module = student.module(PROFILING)
    times = module.where_time_goes(module.profile_job(_job(**job), steps=steps))
    return {"times": fields(times, DeviceTime, "where_time_goes()"), "bottleneck": module.find_bottleneck(times)}


def planted_truth(student: Any, *, job: dict[str, Any], steps: int) -> dict[str, Any]:
    """The same steps made by ourselves: intervals of what the device and the host did, in seconds."""
    made = _job(**job)
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


def breakdown(student: Any, *, job: dict[str, Any], steps: int, warmup: int) -> dict[str, Any]:
    """`step_breakdown` of a job."""
    made = _job(**job)
    told = student.module(PROFILING).step_breakdown(made, steps=steps, warmup=warmup)
    return {"parts": fields(told, StepBreakdown, "step_breakdown()")}


def breakdown_truth(student: Any, *, job: dict[str, Any], steps: int, warmup: int) -> dict[str, Any]:
    """The same, measured by ourselves."""
    return {"parts": _parts(_job(**job), steps, warmup)}


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


def _replicated(student: Any, job: dict[str, Any]) -> TrainingJob:
    torch.cuda.set_device(student.rank)
    made = _job(**job)
    made.model = DistributedDataParallel(made.model, device_ids=[student.rank])
    return made


def communication(student: Any, *, job: dict[str, Any], steps: int, warmup: int) -> dict[str, Any]:
    """`step_breakdown` of this rank, with a DistributedDataParallel."""
    with group(student, "breakdown", backend="nccl"):
        made = _replicated(student, job)
        told = student.module(PROFILING).step_breakdown(made, steps=steps, warmup=warmup)
        parts = fields(told, StepBreakdown, "step_breakdown()")
        made.model = nn.Identity()  # while its process group is still there
    return {"parts": parts}


def communication_truth(student: Any, *, job: dict[str, Any], steps: int, warmup: int) -> dict[str, Any]:
    """The same, measured by ourselves."""
    with group(student, "truth", backend="nccl"):
        made = _replicated(student, job)
        whole = _parts(made, steps, warmup)
        with made.model.no_sync():  # type: ignore[operator]
            parts = _parts(made, steps, warmup)
        made.model = nn.Identity()
    parts["communication_seconds"] = max(0.0, whole["backward_seconds"] - parts["backward_seconds"])
    return {"parts": parts}
