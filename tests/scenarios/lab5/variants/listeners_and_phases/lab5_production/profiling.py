"""Task 5.2: phases of a recording, and a sweep over what begins and ends."""

import contextlib
import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, record_function

from labkit.profiling import REGIONS, Interval, Timeline, TrainingJob, read_timeline
from labkit.results import DeviceTime

from .events import Events

WAIT, WARMUP = 1, 2
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")


class _Region(contextlib.ExitStack):
    """A region that begins when it is named, and ends when the next one is."""

    def enter(self, name: str) -> None:
        self.close()
        self.enter_context(record_function(name))


def profile_job(job: TrainingJob, *, steps: int = 5, trace: Path | str | None = None) -> Timeline:
    """Listeners wait for the device and tell the profiler of steps."""
    if steps < 1:
        raise ValueError(f"a recording needs a step; steps={steps}")
    first, last = WAIT + WARMUP, WAIT + WARMUP + steps - 1
    events = Events()
    on_a_gpu = torch.device(job.device).type == "cuda"
    if on_a_gpu:
        events.on("end", lambda step: torch.cuda.synchronize() if step + 1 == first or step == last else None)

    def write(recorded: Any) -> None:
        if trace is not None:
            Path(trace).parent.mkdir(parents=True, exist_ok=True)
            recorded.export_chrome_trace(str(trace))

    profiler = torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_a_gpu else [])],
        schedule=torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=steps, repeat=1),
        on_trace_ready=write,
    )
    events.on("end", lambda step: profiler.step())
    profiler.start()
    try:
        batches = job.batches()
        for step in range(last + 1):
            _step(job, step, batches)
            events.emit("end", step=step)
    finally:
        profiler.stop()
    return read_timeline(profiler)


def _step(job: TrainingJob, step: int, batches: Iterator[Any]) -> None:
    data, transfer, forward, backward, optimizer = REGIONS
    with _Region() as region:
        region.enter(data)
        batch = next(batches)
        region.enter(transfer)
        inputs, targets = (part.to(job.device, non_blocking=job.non_blocking) for part in batch)
        region.enter(forward)
        loss = job.criterion(job.model(inputs), targets)
        region.enter(backward)
        job.optimizer.zero_grad()
        loss.backward()
        region.enter(optimizer)
        job.optimizer.step()
    if job.after_step:
        job.after_step(step, job.model, loss.detach())


def where_time_goes(timeline: Timeline) -> DeviceTime:
    """One sweep: a set of counters says what is true now; a gap is settled when something runs again."""

    def edges(kind: str, intervals: tuple[Interval, ...]) -> list[tuple[float, int, str]]:
        inside = ((max(a, timeline.start), min(b, timeline.stop)) for a, b in intervals)
        return sorted(edge for a, b in inside if a < b for edge in ((a, 1, kind), (b, -1, kind)))

    kinds = {
        "kernels": timeline.kernels,
        "collectives": timeline.collectives,
        "in": timeline.copies_in,
        "out": timeline.copies_out + timeline.waits,
        "data": timeline.regions.get("data", ()),
        "transfer": timeline.regions.get("transfer", ()),
    }
    merged = heapq.merge(*(edges(kind, intervals) for kind, intervals in kinds.items()), key=lambda edge: edge[0])
    active = dict.fromkeys(kinds, 0)
    seconds = dict.fromkeys(("compute", "communication", "data", "transfer", "sync", "launch"), 0.0)
    now, pending, waited = timeline.start, 0.0, False
    for moment, change, kind in [*merged, (timeline.stop, 0, "kernels")]:
        span = moment - now
        if span > 0:
            if active["kernels"] or active["collectives"]:
                seconds["sync" if waited else "launch"] += pending
                pending, waited = 0.0, False
                seconds["compute" if active["kernels"] else "communication"] += span
            else:
                waited = waited or bool(active["out"] and not active["data"] and not active["transfer"])
                if active["data"]:
                    seconds["data"] += span
                elif active["transfer"] or active["in"]:
                    seconds["transfer"] += span
                else:
                    pending += span
        now = moment
        active[kind] += change
    seconds["sync" if waited else "launch"] += pending
    return DeviceTime(**{f"{name}_seconds": each / timeline.steps for name, each in seconds.items()})


def find_bottleneck(times: DeviceTime, *, target: float = 0.8) -> Bottleneck:
    """Sorted, the largest first; a sort leaves equal ones in their order."""
    if times.compute_seconds / times.step_seconds > target:
        return "compute"
    return sorted(LOSSES, key=lambda name: -getattr(times, name + "_seconds"))[0]
