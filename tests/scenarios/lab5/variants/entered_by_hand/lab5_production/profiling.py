"""Task 5.2, without `with`."""

from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity

from labkit.profiling import Timeline, TrainingJob, intersect, read_timeline, subtract, total, union
from labkit.results import DeviceTime

WAIT, WARMUP = 1, 2
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")


def _begin(name: str) -> Any:
    region = torch.profiler.record_function(name)
    region.__enter__()
    return region


def _end(region: Any) -> None:
    region.__exit__(None, None, None)


def profile_job(job: TrainingJob, *, steps: int = 5, trace: Path | str | None = None) -> Timeline:
    """Each region is entered and left."""
    if steps < 1:
        raise ValueError("steps is below 1")
    cuda = job.device == "cuda"
    profiler = torch.profiler.profile(
        activities=(ProfilerActivity.CPU, ProfilerActivity.CUDA) if cuda else (ProfilerActivity.CPU,),
        schedule=torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=steps, repeat=1),
    )
    profiler.start()
    batches = job.batches()
    step = -WAIT - WARMUP
    while step < steps:
        region = _begin("data")
        inputs, targets = batches.__next__()
        _end(region)
        region = _begin("transfer")
        inputs = inputs.to(job.device, non_blocking=job.non_blocking)
        targets = targets.to(job.device, non_blocking=job.non_blocking)
        _end(region)
        region = _begin("forward")
        outputs = job.model(inputs)
        loss = job.criterion(outputs, targets)
        _end(region)
        region = _begin("backward")
        job.optimizer.zero_grad()
        loss.backward()
        _end(region)
        region = _begin("optimizer")
        job.optimizer.step()
        _end(region)
        if job.after_step is not None:
            job.after_step(step + WAIT + WARMUP, job.model, loss.detach())
        step += 1
        if cuda and step in (0, steps):
            torch.cuda.synchronize()
        profiler.step()
    profiler.stop()
    if trace is not None:
        Path(trace).parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(trace))
    return read_timeline(profiler)


def where_time_goes(timeline: Timeline) -> DeviceTime:
    """Gap by gap."""
    compute = intersect([(timeline.start, timeline.stop)], timeline.kernels)
    communication = subtract(intersect([(timeline.start, timeline.stop)], timeline.collectives), compute)
    ran = union([*compute, *communication])
    edges = [timeline.start]
    for start, stop in ran:
        edges += [start, stop]
    edges.append(timeline.stop)
    loading = transferring = syncing = launching = 0.0
    in_data, in_transfer = timeline.regions.get("data", ()), timeline.regions.get("transfer", ())
    outside = subtract([*timeline.waits, *timeline.copies_out], [*in_data, *in_transfer])
    for place in range(0, len(edges), 2):
        gap = [(edges[place], edges[place + 1])]
        if gap[0][0] >= gap[0][1]:
            continue
        data = intersect(gap, in_data)
        transfer = subtract(intersect(gap, [*in_transfer, *timeline.copies_in]), data)
        rest = total(gap) - total(data) - total(transfer)
        loading += total(data)
        transferring += total(transfer)
        if intersect(gap, outside):
            syncing += rest
        else:
            launching += rest
    return DeviceTime(
        compute_seconds=total(compute) / timeline.steps,
        communication_seconds=total(communication) / timeline.steps,
        data_seconds=loading / timeline.steps,
        transfer_seconds=transferring / timeline.steps,
        sync_seconds=syncing / timeline.steps,
        launch_seconds=launching / timeline.steps,
    )


def find_bottleneck(times: DeviceTime, *, target: float = 0.8) -> Bottleneck:
    """In a table."""
    table = {name: getattr(times, f"{name}_seconds") for name in LOSSES}
    if times.compute_seconds > times.step_seconds * target:
        return "compute"
    return max(table, key=table.get)
