"""Task 5.4: find out what a training pipeline's GPU waits for.

Not for turning anything (tuning.py, which is also the program), nor for making a model's own operations faster: this is
about the loop around them.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, record_function

from labkit.profiling import Timeline, TrainingJob, read_timeline
from labkit.results import DeviceTime, StepBreakdown

WAIT, WARMUP = 1, 2
"""Steps that the profiler leaves out, and steps in which it gets ready; neither is recorded."""
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")


def profile_job(job: TrainingJob, *, steps: int = 5, trace: Path | str | None = None) -> Timeline:
    """Record some steps of a training loop with `torch.profiler`, as it runs: nothing waits that would not without.

    The first WAIT + WARMUP steps of the job are not recorded (`torch.profiler.schedule`), the `steps` after them are.
    Only twice is the device waited for: before the first recorded step, so that none of the earlier work is left, and
    at the end of the last. In each step the five parts are named regions (`record_function`), once each and in the
    order of `labkit.profiling.REGIONS`: "data" is the wait for the batch; "forward" includes the criterion;
    "backward" the clearing of old gradients; `after_step` lies in no region.

    Args:
        job: what to run; WAIT + WARMUP + steps steps of it, from step 0.
        steps: recorded ones.
        trace: where to write the recording for Perfetto or TensorBoard (Chrome's trace format), a path that ends in
            .json or .json.gz; missing folders are made. None: nowhere.

    Returns:
        The `Timeline` of the recorded steps, by `labkit.profiling.read_timeline`.

    Raises:
        ValueError: `steps` is below 1.

    Source: https://docs.pytorch.org/docs/stable/profiler.html
    """
    if steps < 1:
        raise ValueError("at least one step must be recorded")
    on_gpu = torch.device(job.device).type == "cuda"
    activities = [ProfilerActivity.CPU]
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)

    def keep(recorded: torch.profiler.profile) -> None:
        if trace is not None:
            os.makedirs(os.path.dirname(os.path.abspath(trace)), exist_ok=True)
            recorded.export_chrome_trace(os.fspath(trace))

    profiler = torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(skip_first=0, wait=WAIT, warmup=WARMUP, active=steps, repeat=1),
        on_trace_ready=keep,
    )
    batches = job.batches()
    profiler.start()
    try:
        for step in range(WAIT + WARMUP + steps):
            with record_function("data"):
                batch = next(batches)
            with record_function("transfer"):
                inputs = batch[0].to(job.device, non_blocking=job.non_blocking)
                targets = batch[1].to(job.device, non_blocking=job.non_blocking)
            with record_function("forward"):
                loss = job.criterion(job.model(inputs), targets)
            with record_function("backward"):
                job.optimizer.zero_grad()
                loss.backward()
            with record_function("optimizer"):
                job.optimizer.step()
            if job.after_step is not None:
                job.after_step(step, job.model, loss.detach())
            if on_gpu and step + 1 in (WAIT + WARMUP, WAIT + WARMUP + steps):
                torch.cuda.synchronize()
            profiler.step()
    finally:
        profiler.stop()
        batches.close()
    return read_timeline(profiler)


def where_time_goes(timeline: Timeline) -> DeviceTime:
    """Say of each moment between a timeline's start and stop what the device did, or what it waited for.

    A moment belongs to the first of these that is true of it:

    - compute: a kernel is running;
    - communication: a collective is running;
    - data: the host is in its region "data";
    - transfer: a copy to the device is running, or the host is in its region "transfer";
    - sync: the moment lies in a gap in which the host waits for the device, or something is copied from it, outside the
      regions "data" and "transfer", be it for a part of the gap only. A gap is the time from the end of what
      ran (kernels and collectives) to the start of the next, or to the start or stop of the timeline;
    - launch: none of these: the host was busy launching.

    Args:
        timeline: of one or more steps. Its intervals may reach beyond its start and stop; what lies there is left out.

    Returns:
        The seconds of each, divided by the number of steps; together they make up (stop - start) / steps.
    """
    # All edges cut the timeline into pieces; in the middle of a piece it is plain what is true of all of it.
    start, stop = timeline.start, timeline.stop
    data, moving = timeline.regions.get("data", ()), timeline.regions.get("transfer", ())
    groups = {
        "kernel": timeline.kernels,
        "collective": timeline.collectives,
        "data": data,
        "transfer": [*timeline.copies_in, *moving],
        "look": [*timeline.waits, *timeline.copies_out],
        "elsewhere": [*data, *moving],
    }
    edges = [start, stop] + [edge for spans in groups.values() for span in spans for edge in span]
    edges = np.unique(np.clip(np.array(edges, dtype=np.float64), start, stop))
    length = np.diff(edges)
    true = {}
    for name, spans in groups.items():
        depth = np.zeros(len(edges) + 1)
        for begin, end in spans:
            if end > begin:
                depth[np.searchsorted(edges, np.clip(begin, start, stop))] += 1
                depth[np.searchsorted(edges, np.clip(end, start, stop))] -= 1
        true[name] = np.cumsum(depth)[: len(length)] > 0
    idle = ~(true["kernel"] | true["collective"])
    # Pieces of one gap have one number: how many busy pieces lie before them.
    gap = np.cumsum(~idle)
    looked = np.isin(gap, gap[idle & true["look"] & ~true["elsewhere"]])
    causes = [
        ("compute_seconds", true["kernel"]),
        ("communication_seconds", true["collective"]),
        ("data_seconds", true["data"]),
        ("transfer_seconds", true["transfer"]),
        ("sync_seconds", looked & idle),
        ("launch_seconds", np.ones(len(length), dtype=bool)),
    ]
    free = np.ones(len(length), dtype=bool)
    result = {}
    for name, holds in causes:
        result[name] = float(length[free & holds].sum()) / timeline.steps
        free &= ~holds
    return DeviceTime(**result)


def utilization(times: DeviceTime) -> float:
    """The share of a step in which at least one kernel runs, collectives included, 0 to 1: what NVML calls utilisation.

    Source: nvml.h, nvmlUtilization_t.
    """
    busy = times.compute_seconds + times.communication_seconds
    return busy / times.step_seconds


def find_bottleneck(times: DeviceTime, *, target: float = 0.8) -> Bottleneck:
    """Say what to work on first.

    "compute" if the device computes for more than `target` of the step (communication does not count): the pipeline is
    as good as its model and its device. Else the largest of
    "data" (a slow loader), "transfer", "sync" (waiting for the device where there is no need), "communication", and
    "launch" (batches too small for the device). Of equal ones, the first in this order.

    Args:
        times: of a step.
        target: share of the step in which the device should compute, 0 to 1.
    """
    if times.compute_seconds - target * times.step_seconds > 1e-9 * times.step_seconds:
        return "compute"
    worst = LOSSES[0]
    for name in LOSSES[1:]:
        if getattr(times, name + "_seconds") > getattr(times, worst + "_seconds"):
            worst = name
    return worst


def step_breakdown(job: TrainingJob, *, steps: int = 5, warmup: int = 2) -> StepBreakdown:
    """Time the parts of a step one by one, with the device idle whenever the clock is read.

    First `warmup` untimed steps, then `steps` timed ones. The parts are the regions of `profile_job`; `after_step` is
    called, and not counted. Each figure is the median over the timed steps.

    If the job's model is a DistributedDataParallel, as many steps follow without exchange of gradients (`no_sync`, for
    the forward and the backward pass). All figures are then of these, and communication_seconds is what backward took
    longer in the steps with exchange, by the medians, never below 0. Otherwise communication_seconds is 0.0.

    Args:
        job: what to run.
        steps: timed ones, of each sort.
        warmup: untimed ones before them, of each sort.

    Raises:
        ValueError: `steps` is below 1 or `warmup` below 0.
    """
    if steps < 1:
        raise ValueError("steps must be 1 or more")
    if warmup < 0:
        raise ValueError("warmup must be 0 or more")
    on_gpu = torch.device(job.device).type == "cuda"
    distributed = isinstance(job.model, DistributedDataParallel)
    batches = job.batches()
    number = 0
    medians = []
    for exchange in (True, False) if distributed else (True,):
        clock = np.zeros((warmup + steps, 6))
        for row in range(warmup + steps):
            with contextlib.ExitStack() as quiet:
                if not exchange:
                    quiet.enter_context(job.model.no_sync())
                for part in range(6):
                    if part == 1:
                        inputs, targets = next(batches)
                    elif part == 2:
                        inputs = inputs.to(job.device, non_blocking=job.non_blocking)
                        targets = targets.to(job.device, non_blocking=job.non_blocking)
                    elif part == 3:
                        loss = job.criterion(job.model(inputs), targets)
                    elif part == 4:
                        job.optimizer.zero_grad()
                        loss.backward()
                    elif part == 5:
                        job.optimizer.step()
                    if on_gpu:
                        torch.cuda.synchronize()
                    clock[row, part] = time.perf_counter()
            if job.after_step is not None:
                job.after_step(number, job.model, loss.detach())
            number += 1
        medians.append(np.median(np.diff(clock[warmup:], axis=1), axis=0))
    batches.close()
    last = [float(seconds) for seconds in medians[-1]]
    return StepBreakdown(
        data_seconds=last[0],
        transfer_seconds=last[1],
        forward_seconds=last[2],
        backward_seconds=last[3],
        optimizer_seconds=last[4],
        communication_seconds=max(0.0, float(medians[0][3] - medians[1][3])) if distributed else 0.0,
    )
