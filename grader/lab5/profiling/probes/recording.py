"""Probes of Lab 5's profiling: jobs whose parts take known times, and what the student's functions say of them.

Everything here runs on a virtual GPU with shapes only; times are simulated.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from gradebox.sandbox.probe_loader import Student
from grader.lab5.profiling.cases import (
    Attribute,
    AttributeReply,
    Bottlenecks,
    BottlenecksReply,
    NewFolder,
    NewFolderReply,
    OnCpu,
    OnCpuReply,
    Planted,
    PlantedReply,
    Record,
    RecordReply,
    Span,
    TimelineCase,
)
from grader.lab5.profiling.probes.jobs import job_of
from grader.lab5.profiling.probes.planted_jobs import planted_job
from grader.shared.probes.endings import ending
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.kept import function, nap, notes
from grader.shared.probes.looks import is_file, read_bytes
from grader.shared.probes.record import Reported, mark, reading
from grader.shared.probes.support import fields, plain
from labkit.profiling import REGIONS, STEP_PREFIX, Timeline, TrainingJob
from labkit.results import DeviceTime, PipelineSettings

PROFILING = "lab5_production.profiling"


def record(student: Student, inputs: Record) -> RecordReply:
    """`profile_job` of a job in which the host sleeps for `seconds` in each part; what it made of it, and its trace.

    Batches of so many `samples`, in `pinned` memory or not. Then what it says to no steps at all.
    """
    seconds = inputs.seconds
    torch.zeros(1, device="cuda")
    (take, taken), (call, calls), (update, updates), (clear, cleared) = notes(), notes(), notes(), notes()
    (begin_pass, passes), (give, given) = notes(), notes()
    job = job_of(
        samples=inputs.samples,
        width=64,
        layers=2,
        load_seconds=seconds["data"],
        on_batch=function(take),
        on_pass=function(begin_pass),
        pinned=inputs.pinned,
    )
    naps = {name: nap(seconds[name]) for name in ("forward", "clear", "backward", "optimizer", "after_step")}

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        naps["forward"]()
        return nn.functional.mse_loss(outputs, targets)

    @function
    def after_step(step: int, model: nn.Module, loss: Tensor) -> None:
        call(step)
        give("a tensor" if isinstance(loss, Tensor) else f"a {type(loss).__name__}")
        naps["after_step"]()

    def slowly(zero_grad: Callable[..., None]) -> Callable[..., None]:
        @function
        def cleared_slowly(*arguments: object, **options: object) -> None:
            clear(1)
            naps["clear"]()
            zero_grad(*arguments, **options)

        return cleared_slowly

    @function
    def after_update(*_: object) -> None:
        update(1)
        naps["optimizer"]()

    job.criterion, job.after_step = criterion, after_step
    for part in (job.optimizer, job.model):
        part.zero_grad = slowly(part.zero_grad)  # type: ignore[method-assign]
    job.optimizer.register_step_post_hook(after_update)
    next(iter(job.model.parameters())).register_post_accumulate_grad_hook(lambda _: naps["backward"]())
    begin = mark(student.gpu)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"trace{inputs.suffix}")
        recording = student.module(PROFILING).profile_job(job, steps=inputs.steps, trace=path)
        launched: Reported = reading(student.gpu, "launched", begin)
        events = _trace(path)
    timeline = fields(recording, Timeline, "profile_job()")
    batches, begun = len(taken()), len(passes())
    return RecordReply(
        refused=is_refused(lambda: student.module(PROFILING).profile_job(job, steps=0)),
        taken=batches,
        passes=begun,
        calls=plain(calls(), "step numbers given to after_step"),
        losses=sorted(set(given())),
        updates=len(updates()),
        cleared=len(cleared()),
        steps=timeline["steps"],
        events=events,
        launched=launched,
    )


def new_folder(student: Student, inputs: NewFolder) -> NewFolderReply:
    """`profile_job` with a trace in a folder that is not there."""
    job = job_of(samples=8, width=8, layers=1, load_seconds=0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "traces", "new", "trace.json")
        student.module(PROFILING).profile_job(job, steps=1, trace=path)
        return NewFolderReply(written=_trace(path) is not None)


def _trace(path: Path) -> dict[str, list[Span]] | None:
    """Start and duration in seconds of the host's regions and steps in a written trace; None where there is none.

    And, on the virtual GPU, of the host's calls that copy to the device ("copies").
    """
    if not is_file(path):
        return None
    data = read_bytes(path)
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events = document["traceEvents"] if isinstance(document, dict) else document
    spans: dict[str, list[Span]] = {name: [] for name in (*REGIONS, "step", "copies")}
    for event in events:
        name = str(event.get("name"))
        key = "step" if name.startswith(STEP_PREFIX) else "copies" if name.startswith("Memcpy HtoD") else name
        if event.get("ph") == "X" and key in spans and not str(event.get("cat")).startswith("gpu"):
            spans[key].append((float(event["ts"]) * 1e-6, float(event["dur"]) * 1e-6))
    return {name: sorted(events) for name, events in spans.items()}


def on_cpu(student: Student, inputs: OnCpu) -> OnCpuReply:
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
        calls: tuple[Callable[..., object], ...] = (
            partial(module.profile_job, trace=Path(folder, "trace.json")),
            lambda made, steps: tuner.tune(lambda _: made, [PipelineSettings(batch_size=2)], steps=steps, warmup=0),
        )
        return OnCpuReply(errors=[ending(partial(call, job(), steps=1)) for call in calls])


def attribute(student: Student, inputs: Attribute) -> AttributeReply:
    """`where_time_goes` of made-up timelines."""
    module = student.module(PROFILING)
    times = [module.where_time_goes(_timeline(case)) for case in inputs.timelines]
    return AttributeReply(times=[fields(each, DeviceTime, "where_time_goes()") for each in times])


def _timeline(case: TimelineCase) -> Timeline:
    return Timeline(
        start=case.start,
        stop=case.stop,
        steps=case.steps,
        kernels=tuple(case.kernels),
        collectives=tuple(case.collectives),
        copies_in=tuple(case.copies_in),
        copies_out=tuple(case.copies_out),
        waits=tuple(case.waits),
        regions={name: tuple(spans) for name, spans in case.regions.items()},
    )


def bottlenecks(student: Student, inputs: Bottlenecks) -> BottlenecksReply:
    """`find_bottleneck` of made-up steps, each with a target or the default."""
    module = student.module(PROFILING)
    names: list[object] = []
    for times, target in zip(inputs.times, inputs.targets, strict=True):
        options = {} if target is None else {"target": target}
        names.append(plain(module.find_bottleneck(DeviceTime(**times), **options), "find_bottleneck()"))
    return BottlenecksReply(names=names)


def planted(student: Student, inputs: Planted) -> PlantedReply:
    """What the student's profile says of a job in which something is wrong.

    `idle` is whether the device was, each time that a profiler was told of a step.
    """
    module = student.module(PROFILING)
    note, idle = notes()
    original = torch.profiler.profile.step

    @function
    def ask() -> None:
        note(bool(torch.cuda.current_stream().query()))

    def step(profiler: torch.profiler.profile) -> None:
        ask()
        original(profiler)

    torch.profiler.profile.step = step  # type: ignore[method-assign, assignment]
    try:
        recording = module.profile_job(planted_job(inputs.job), steps=inputs.steps)
        times = module.where_time_goes(recording)
    finally:
        torch.profiler.profile.step = original  # type: ignore[method-assign]
    return PlantedReply(
        times=fields(times, DeviceTime, "where_time_goes()"),
        bottleneck=module.find_bottleneck(times),
        timeline=_case(recording),
        idle=idle(),
    )


def _case(recording: object) -> TimelineCase:
    """A timeline that `profile_job` returned, in plain values."""
    values = fields(recording, Timeline, "profile_job()")
    spans = {
        name: [(float(begin), float(end)) for begin, end in values[name]]
        for name in ("kernels", "collectives", "copies_in", "copies_out", "waits")
    }
    regions = {name: [(float(begin), float(end)) for begin, end in each] for name, each in values["regions"].items()}
    return TimelineCase(
        start=float(values["start"]),
        stop=float(values["stop"]),
        steps=int(values["steps"]),
        regions={"data": [], "transfer": []} | regions,
        **spans,
    )
