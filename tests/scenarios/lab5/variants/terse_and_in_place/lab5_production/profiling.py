"""Task 5.2."""

from pathlib import Path
from typing import Literal

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.profiler import record_function as region

from labkit.profiling import Timeline, TrainingJob, intersect, read_timeline, subtract, total
from labkit.results import DeviceTime

WAIT, WARMUP = 1, 2
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")


def profile_job(job: TrainingJob, *, steps: int = 5, trace: Path | str | None = None) -> Timeline:
    """Few words."""
    if steps < 1:
        raise ValueError(steps)
    gpu, n = job.device == "cuda", WAIT + WARMUP
    kinds = {ProfilerActivity.CPU} | ({ProfilerActivity.CUDA} if gpu else set())
    batches = job.batches()
    with profile(activities=kinds, schedule=schedule(wait=WAIT, warmup=WARMUP, active=steps, repeat=1)) as p:
        for i in range(n + steps):
            with region("data"):
                batch = next(batches)
            with region("transfer"):
                x, y = [t.to(job.device, non_blocking=job.non_blocking) for t in batch]
            with region("forward"):
                loss = job.criterion(job.model(x), y)
            with region("backward"):
                job.optimizer.zero_grad(), loss.backward()
            with region("optimizer"):
                job.optimizer.step()
            (job.after_step or (lambda *_: None))(i, job.model, loss.detach())
            gpu and i in (n - 1, n + steps - 1) and torch.cuda.synchronize()
            p.step()
    if trace:
        Path(trace).parent.mkdir(parents=True, exist_ok=True), p.export_chrome_trace(str(trace))
    return read_timeline(p)


def where_time_goes(timeline: Timeline) -> DeviceTime:
    """What is left is handed from one to the next."""
    t, r, rest = timeline, timeline.regions, [(timeline.start, timeline.stop)]
    gaps = subtract(rest, [*t.kernels, *t.collectives])
    host = [*r.get("data", ()), *r.get("transfer", ())]
    waits = subtract([*t.waits, *t.copies_out], host)
    sync = [g for g in gaps if intersect([g], waits)]
    found = []
    for kind in (t.kernels, t.collectives, r.get("data", ()), [*t.copies_in, *r.get("transfer", ())], sync, gaps):
        found.append(total(intersect(rest, kind)) / t.steps)
        rest = subtract(rest, kind)
    return DeviceTime(**dict(zip(DeviceTime.__dataclass_fields__, found, strict=True)))


def find_bottleneck(times: DeviceTime, *, target: float = 0.8) -> Bottleneck:
    """Few words."""
    busy = times.compute_seconds > target * times.step_seconds
    return "compute" if busy else max(LOSSES, key=lambda n: getattr(times, f"{n}_seconds"))
