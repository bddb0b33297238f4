"""Probes of Lab 5's profiling: jobs whose parts take known times, and what the student's functions say of them.

Everything here runs on a virtual GPU with shapes only; times are simulated.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grader.lab5.probes.jobs import job_of
from grader.shared.probes.endings import ending
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.kept import nap, notes
from grader.shared.probes.support import fields, plain
from labkit.profiling import REGIONS, STEP_PREFIX, Timeline, TrainingJob
from labkit.results import DeviceTime, PipelineSettings

PROFILING = "lab5_production.profiling"


def record(
    student: Any, *, steps: int, seconds: dict[str, float], suffix: str, samples: int, pinned: bool
) -> dict[str, Any]:
    """`profile_job` of a job in which the host sleeps for `seconds` in each part; what it made of it, and its trace.

    Batches of so many `samples`, in `pinned` memory or not. Then what it says to no steps at all.
    """
    torch.zeros(1, device="cuda")
    (take, taken), (call, calls), (update, updates) = notes(), notes(), notes()
    job = job_of(samples=samples, width=64, layers=2, load_seconds=seconds["data"], on_batch=take, pinned=pinned)
    naps = {name: nap(seconds[name]) for name in ("forward", "backward", "optimizer", "after_step")}

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        naps["forward"]()
        return nn.functional.mse_loss(outputs, targets)

    def after_step(step: int, model: nn.Module, loss: Tensor) -> None:
        call(step)
        naps["after_step"]()

    def after_update(*_: Any) -> None:
        update(1)
        naps["optimizer"]()

    job.criterion, job.after_step = criterion, after_step
    job.optimizer.register_step_post_hook(after_update)
    next(iter(job.model.parameters())).register_post_accumulate_grad_hook(lambda _: naps["backward"]())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "traces", "new", f"trace{suffix}")
        told = student.module(PROFILING).profile_job(job, steps=steps, trace=path)
        events = _trace(path)
    timeline = fields(told, Timeline, "profile_job()")
    batches = len(taken())
    return {
        "refused": is_refused(lambda: student.module(PROFILING).profile_job(job, steps=0)),
        "taken": batches,
        "calls": plain(calls(), "step numbers given to after_step"),
        "updates": len(updates()),
        "steps": timeline["steps"],
        "events": events,
    }


def _trace(path: Path) -> dict[str, list[list[float]]] | None:
    """Start and duration in seconds of the host's regions and steps in a written trace; None where there is none.

    And, on the virtual GPU, of the host's calls that copy to the device ("copies").
    """
    if not path.is_file():
        return None
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events = document["traceEvents"] if isinstance(document, dict) else document
    found: dict[str, list[list[float]]] = {name: [] for name in (*REGIONS, "step", "copies")}
    for event in events:
        name = str(event.get("name"))
        key = "step" if name.startswith(STEP_PREFIX) else "copies" if name.startswith("Memcpy HtoD") else name
        if event.get("ph") == "X" and key in found and not str(event.get("cat")).startswith("gpu"):
            found[key].append([float(event["ts"]) * 1e-6, float(event["dur"]) * 1e-6])
    return {name: sorted(spans) for name, spans in found.items()}


def on_cpu(student: Any) -> dict[str, Any]:
    """`profile_job` and `tune` of a job on the CPU, where there is no GPU at all: the error of each.

    The trace goes to a folder that is there.
    """
    module, tuner = student.module(PROFILING), student.module("lab5_production.tuning")
    model = nn.Linear(4, 4)

    def job() -> TrainingJob:
        return TrainingJob(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
            loader=[(torch.zeros(2, 4), torch.zeros(2, 4))],
            batch_size=2,
            device="cpu",
            criterion=nn.functional.mse_loss,
        )

    with tempfile.TemporaryDirectory() as folder:
        calls = (
            partial(module.profile_job, trace=Path(folder, "trace.json")),
            lambda made, steps: tuner.tune(lambda _: made, [PipelineSettings(batch_size=2)], steps=steps, warmup=0),
        )
        return {"errors": [ending(partial(call, job(), steps=1)) for call in calls]}


def attribute(student: Any, *, timelines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`where_time_goes` of made-up timelines."""
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
    return {"times": [fields(each, DeviceTime, "where_time_goes()") for each in times]}


def bottlenecks(student: Any, *, times: Sequence[dict[str, float]], targets: Sequence[float | None]) -> dict[str, Any]:
    """`find_bottleneck` of made-up steps, each with a target or the default."""
    module = student.module(PROFILING)
    names = []
    for each, target in zip(times, targets, strict=True):
        options = {} if target is None else {"target": target}
        names.append(plain(module.find_bottleneck(DeviceTime(**each), **options), "find_bottleneck()"))
    return {"names": names}


def planted(student: Any, *, job: dict[str, Any], steps: int) -> dict[str, Any]:
    """What the student's profile says of a job in which something is wrong.

    `idle` is whether the device was, each time that a profiler was told of a step.
    """
    module = student.module(PROFILING)
    idle: list[bool] = []
    told = torch.profiler.profile.step

    def step(profiler: Any) -> None:
        idle.append(torch.cuda.current_stream().query())
        told(profiler)

    torch.profiler.profile.step = step  # type: ignore[method-assign,assignment]
    try:
        times = module.where_time_goes(module.profile_job(job_of(**job), steps=steps))
    finally:
        torch.profiler.profile.step = told  # type: ignore[method-assign]
    return {
        "times": fields(times, DeviceTime, "where_time_goes()"),
        "bottleneck": module.find_bottleneck(times),
        "idle": idle,
    }
