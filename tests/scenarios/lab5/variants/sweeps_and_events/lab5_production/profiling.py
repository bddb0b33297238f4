"""Task 5.2: arrays of moments, and events of CUDA."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.profiler import ProfilerActivity

from labkit.profiling import Interval, Timeline, TrainingJob, read_timeline
from labkit.results import DeviceTime

WAIT, WARMUP = 1, 2
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")


def _finish(device: str) -> None:
    """Wait by an event that comes after everything else."""
    if device == "cuda":
        event = torch.cuda.Event()
        event.record()
        event.synchronize()


def profile_job(job: TrainingJob, *, steps: int = 5, trace: Path | str | None = None) -> Timeline:
    """`record_function` as a decorator of the parts, the trace by a handler."""
    if steps <= 0:
        raise ValueError(f"no recording of {steps} steps")
    region = torch.profiler.record_function
    batches = job.batches()

    @region("data")
    def data():
        return next(batches)

    @region("transfer")
    def transfer(batch):
        return tuple(tensor.to(device=job.device, non_blocking=job.non_blocking) for tensor in batch)

    @region("forward")
    def forward(inputs, targets):
        return job.criterion(job.model(inputs), targets)

    @region("backward")
    def backward(loss):
        job.optimizer.zero_grad()
        loss.backward()

    @region("optimizer")
    def optimizer():
        job.optimizer.step()

    def handle(profiler) -> None:
        if trace is None:
            return
        os.makedirs(Path(trace).parent, exist_ok=True)
        profiler.export_chrome_trace(os.fspath(trace))

    kinds = {"cpu": [ProfilerActivity.CPU], "cuda": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}[job.device]
    recording = torch.profiler.profile(
        activities=kinds,
        schedule=torch.profiler.schedule(skip_first=WAIT, wait=0, warmup=WARMUP, active=steps, repeat=1),
        on_trace_ready=handle,
        acc_events=True,
    )
    with recording:
        for step in range(WAIT + WARMUP + steps):
            loss = forward(*transfer(data()))
            backward(loss)
            optimizer()
            if job.after_step is not None:
                job.after_step(step, job.model, loss.detach())
            del loss
            if step == WAIT + WARMUP - 1 or step == WAIT + WARMUP + steps - 1:
                _finish(job.device)
            recording.step()
    return read_timeline(recording)


def _inside(moments: np.ndarray, intervals: Iterable[Interval]) -> np.ndarray:
    """How many intervals there are around each moment: begun before it, less those that ended before it."""
    table = np.array([each for each in intervals if each[1] > each[0]], dtype=float).reshape(-1, 2)
    starts, stops = np.sort(table[:, 0]), np.sort(table[:, 1])
    return np.searchsorted(starts, moments, side="right") - np.searchsorted(stops, moments, side="right")


def where_time_goes(timeline: Timeline) -> DeviceTime:
    """Every piece between two edges at once; the pieces of a gap have its number in common."""
    data, transfer = timeline.regions.get("data", ()), timeline.regions.get("transfer", ())
    device = [*timeline.kernels, *timeline.collectives]
    everything = [*device, *timeline.copies_in, *timeline.copies_out, *timeline.waits, *data, *transfer]
    edges = np.unique([timeline.start, timeline.stop, *(edge for each in everything for edge in each)])
    edges = edges[(edges >= timeline.start) & (edges <= timeline.stop)]
    begins, lengths = edges[:-1], np.diff(edges)
    computing = _inside(begins, timeline.kernels) > 0
    busy = _inside(begins, device) > 0
    in_data, in_transfer = _inside(begins, data) > 0, _inside(begins, transfer) > 0
    waiting = _inside(begins, [*timeline.waits, *timeline.copies_out]) > 0
    gap = np.cumsum(busy)  # stays the same from one busy piece to the next
    waited = np.zeros(len(busy) + 1, dtype=bool)
    np.logical_or.at(waited, gap, ~busy & waiting & ~in_data & ~in_transfer)
    kinds = [
        computing,
        busy,
        in_data,
        in_transfer | (_inside(begins, timeline.copies_in) > 0),
        waited[gap],
        np.ones_like(busy),
    ]
    first = np.argmax(np.stack(kinds), axis=0)
    seconds = np.bincount(first, weights=lengths, minlength=6) / timeline.steps
    compute, communication, loading, copying, sync, launch = map(float, seconds)
    return DeviceTime(
        compute_seconds=compute,
        communication_seconds=communication,
        data_seconds=loading,
        transfer_seconds=copying,
        sync_seconds=sync,
        launch_seconds=launch,
    )


def find_bottleneck(times: DeviceTime, *, target: float = 0.8) -> Bottleneck:
    """By np.argmax, which takes the first of equal ones."""
    if times.compute_seconds > target * times.step_seconds:
        return "compute"
    return LOSSES[int(np.argmax([getattr(times, f"{name}_seconds") for name in LOSSES]))]
