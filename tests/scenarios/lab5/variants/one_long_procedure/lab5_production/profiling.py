"""Task 5.2."""

import itertools
import os
from pathlib import Path
from typing import Literal

import torch
from torch.profiler import ProfilerActivity, record_function

from labkit.profiling import Timeline, TrainingJob, read_timeline
from labkit.results import DeviceTime

WAIT, WARMUP = 1, 2
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")


def profile_job(job: TrainingJob, *, steps: int = 5, trace: Path | str | None = None) -> Timeline:
    """One loop, the profiler told by hand."""
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, and is {steps}")
    activities = [ProfilerActivity.CPU]
    if job.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    profiler = torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(skip_first=0, wait=WAIT, warmup=WARMUP, active=steps, repeat=1),
    )
    profiler.__enter__()
    batches = job.batches()
    last = WAIT + WARMUP + steps - 1
    step = 0
    while step <= last:
        with record_function("data"):
            inputs, targets = next(batches)
        with record_function("transfer"):
            inputs = inputs.to(job.device, non_blocking=job.non_blocking)
            targets = targets.to(job.device, non_blocking=job.non_blocking)
        with record_function("forward"):
            loss = job.criterion(job.model(inputs), targets)
        with record_function("backward"):
            job.optimizer.zero_grad()
            loss.backward()
        with record_function("optimizer"):
            job.optimizer.step()
        if job.after_step is not None:
            job.after_step(step, job.model, loss.detach())
        if job.device == "cuda" and (step == WAIT + WARMUP - 1 or step == last):
            torch.cuda.synchronize()
        profiler.step()
        step += 1
    profiler.__exit__(None, None, None)
    if trace is not None:
        os.makedirs(os.path.dirname(os.path.abspath(trace)), exist_ok=True)
        profiler.export_chrome_trace(str(trace))
    return read_timeline(profiler)


def where_time_goes(timeline: Timeline) -> DeviceTime:
    """Every moment between two edges is asked what it is: quadratic, and without any arithmetic of intervals."""
    edges = {timeline.start, timeline.stop}
    data = timeline.regions.get("data", ())
    transfer = timeline.regions.get("transfer", ())
    for intervals in (
        timeline.kernels, timeline.collectives, timeline.copies_in, timeline.copies_out, timeline.waits, data, transfer,
    ):  # fmt: skip
        for interval in intervals:
            for edge in interval:
                if timeline.start < edge < timeline.stop:
                    edges.add(edge)
    moments = sorted(edges)

    seconds = {"compute": 0.0, "communication": 0.0, "data": 0.0, "transfer": 0.0, "sync": 0.0, "launch": 0.0}
    undecided = 0.0
    waited = False
    for begin, end in itertools.pairwise(moments):
        middle = (begin + end) / 2

        def at(intervals, middle=middle):
            return any(start <= middle < stop for start, stop in intervals)

        computes = at(timeline.kernels)
        communicates = at(timeline.collectives)
        if computes or communicates:
            seconds["sync" if waited else "launch"] += undecided
            undecided = 0.0
            waited = False
        if computes:
            seconds["compute"] += end - begin
        elif communicates:
            seconds["communication"] += end - begin
        else:
            in_data = at(data)
            in_transfer = at(transfer)
            if not in_data and not in_transfer and (at(timeline.waits) or at(timeline.copies_out)):
                waited = True
            if in_data:
                seconds["data"] += end - begin
            elif in_transfer or at(timeline.copies_in):
                seconds["transfer"] += end - begin
            else:
                undecided += end - begin
    seconds["sync" if waited else "launch"] += undecided
    return DeviceTime(**{f"{name}_seconds": value / timeline.steps for name, value in seconds.items()})


def find_bottleneck(times: DeviceTime, *, target: float = 0.8) -> Bottleneck:
    """A chain of comparisons."""
    if times.compute_seconds > target * times.step_seconds:
        return "compute"
    worst: Bottleneck = "data"
    most = times.data_seconds
    if times.transfer_seconds > most:
        worst, most = "transfer", times.transfer_seconds
    if times.sync_seconds > most:
        worst, most = "sync", times.sync_seconds
    if times.communication_seconds > most:
        worst, most = "communication", times.communication_seconds
    if times.launch_seconds > most:
        worst, most = "launch", times.launch_seconds
    return worst
