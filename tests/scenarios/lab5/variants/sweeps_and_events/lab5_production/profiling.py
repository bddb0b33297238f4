"""Profiling, written from the docstrings: one generator makes the steps, a sweep over sorted moments explains them."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

import numpy as np
import torch
from torch import profiler

from labkit.profiling import REGIONS, Timeline, TrainingJob, read_timeline
from labkit.results import DeviceTime, StepBreakdown

WAIT, WARMUP = 1, 2
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")


def _parts(job: TrainingJob) -> list[tuple[str, Callable[[dict[str, Any]], None]]]:
    """The parts of a step, each working on what the ones before it left in a dictionary."""
    batches = job.batches()

    def data(state: dict[str, Any]) -> None:
        state["x"], state["y"] = next(batches)

    def transfer(state: dict[str, Any]) -> None:
        for key in "xy":
            state[key] = state[key].to(job.device, non_blocking=job.non_blocking)

    def forward(state: dict[str, Any]) -> None:
        state["loss"] = job.criterion(job.model(state["x"]), state["y"])

    def backward(state: dict[str, Any]) -> None:
        job.optimizer.zero_grad(set_to_none=True)
        state["loss"].backward()

    def optimizer(state: dict[str, Any]) -> None:
        job.optimizer.step()

    return list(zip(REGIONS, (data, transfer, forward, backward, optimizer), strict=True))


def _drain(job: TrainingJob) -> None:
    if torch.device(job.device).type == "cuda":
        done = torch.cuda.Event()
        done.record()
        done.synchronize()


def profile_job(job: TrainingJob, *, steps: int = 5, trace: Path | str | None = None) -> Timeline:
    if steps <= 0:
        raise ValueError(f"cannot record {steps} steps")

    def ready(recorded: profiler.profile) -> None:
        if trace is not None:
            path = Path(trace).absolute()
            path.parent.mkdir(parents=True, exist_ok=True)
            recorded.export_chrome_trace(str(path))

    activities = [profiler.ProfilerActivity.CPU]
    if torch.device(job.device).type == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    recorder = profiler.profile(
        activities=activities,
        schedule=profiler.schedule(skip_first=WAIT, wait=0, warmup=WARMUP, active=steps, repeat=1),
        on_trace_ready=ready,
        record_shapes=False,
    )
    parts = _parts(job)
    recorder.start()
    try:
        for step in range(WAIT + WARMUP + steps):
            state: dict[str, Any] = {}
            for name, run in parts:
                with profiler.record_function(name):
                    run(state)
            if job.after_step:
                job.after_step(step, job.model, state["loss"])
            del state
            if step == WAIT + WARMUP - 1 or step == WAIT + WARMUP + steps - 1:
                _drain(job)
            recorder.step()
    finally:
        recorder.stop()
    return read_timeline(recorder)


def where_time_goes(timeline: Timeline) -> DeviceTime:
    """Every edge of every interval is a moment at which something changes; between two of them nothing does."""
    begin, end = timeline.start, timeline.stop
    kinds = {
        "kernel": timeline.kernels,
        "collective": timeline.collectives,
        "data": timeline.regions.get("data", ()),
        "transfer": timeline.regions.get("transfer", ()),
        "in": timeline.copies_in,
        "wait": (*timeline.waits, *timeline.copies_out),
    }
    edges: dict[float, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for kind, spans in kinds.items():
        for first, last in spans:
            first, last = min(max(first, begin), end), min(max(last, begin), end)
            if first < last:
                edges[first][kind] += 1
                edges[last][kind] -= 1
    edges[begin], edges[end] = edges[begin], edges[end]

    seconds = dict.fromkeys(("compute", "communication", "data", "transfer", "sync", "launch"), 0.0)
    active: dict[str, int] = defaultdict(int)
    undecided, waited = 0.0, False

    def close() -> None:
        nonlocal undecided, waited
        seconds["sync" if waited else "launch"] += undecided
        undecided, waited = 0.0, False

    moments = sorted(edges)
    for moment, following in pairwise(moments):
        for kind, change in edges[moment].items():
            active[kind] += change
        length = following - moment
        if active["kernel"]:
            close()
            seconds["compute"] += length
        elif active["collective"]:
            close()
            seconds["communication"] += length
        else:
            waited = waited or bool(active["wait"] and not active["data"] and not active["transfer"])
            if active["data"]:
                seconds["data"] += length
            elif active["in"] or active["transfer"]:
                seconds["transfer"] += length
            else:
                undecided += length
    close()
    return DeviceTime(**{f"{name}_seconds": value / timeline.steps for name, value in seconds.items()})


def utilization(times: DeviceTime) -> float:
    idle = times.data_seconds + times.transfer_seconds + times.sync_seconds + times.launch_seconds
    busy = times.compute_seconds + times.communication_seconds
    return busy / (busy + idle)


def find_bottleneck(times: DeviceTime, *, target: float = 0.8) -> Bottleneck:
    if times.compute_seconds / times.step_seconds > target:
        return "compute"
    worst: Bottleneck = "data"
    for name in LOSSES:
        if getattr(times, f"{name}_seconds") > getattr(times, f"{worst}_seconds"):
            worst = name
    return worst


def step_breakdown(job: TrainingJob, *, steps: int = 5, warmup: int = 2) -> StepBreakdown:
    if steps < 1:
        raise ValueError("there must be steps to time")
    if warmup < 0:
        raise ValueError("the warm-up cannot be negative")
    parts = _parts(job)
    counted = iter(range(2 * (steps + warmup)))

    def series() -> dict[str, float]:
        taken: dict[str, list[int]] = {name: [] for name in REGIONS}
        for round_ in range(warmup + steps):
            state: dict[str, Any] = {}
            for name, run in parts:
                _drain(job)
                before = perf_counter_ns()
                run(state)
                _drain(job)
                if round_ >= warmup:
                    taken[name].append(perf_counter_ns() - before)
            if job.after_step is not None:
                job.after_step(next(counted), job.model, state["loss"].detach())
        return {name: float(np.median(values)) / 1e9 for name, values in taken.items()}

    told, communication = series(), 0.0
    if isinstance(job.model, torch.nn.parallel.DistributedDataParallel):
        with _alone(job.model):
            alone = series()
        communication = max(told["backward"] - alone["backward"], 0.0)
        told = alone
    return StepBreakdown(
        **{f"{name}_seconds": value for name, value in told.items()}, communication_seconds=communication
    )


@contextlib.contextmanager
def _alone(model: torch.nn.parallel.DistributedDataParallel) -> Iterator[None]:
    before, model.require_backward_grad_sync = model.require_backward_grad_sync, False
    yield
    model.require_backward_grad_sync = before
