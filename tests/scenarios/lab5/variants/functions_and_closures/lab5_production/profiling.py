"""Task 5.2, of functions."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerAction, ProfilerActivity

from labkit.profiling import Interval, Timeline, TrainingJob, read_timeline
from labkit.results import DeviceTime

WAIT, WARMUP = 1, 2
Bottleneck = Literal["data", "transfer", "sync", "communication", "launch", "compute"]
LOSSES: tuple[Bottleneck, ...] = ("data", "transfer", "sync", "communication", "launch")
Item = TypeVar("Item")


def _named(name: str, call: Callable[..., Item]) -> Callable[..., Item]:
    """The same function, which runs in a region of that name."""

    @functools.wraps(call)
    def inside(*given: Any) -> Item:
        with record_function(name):
            return call(*given)

    return inside


def _plan(steps: int) -> Callable[[int], ProfilerAction]:
    """What `torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=steps, repeat=1)` makes, too."""
    first, last = WAIT + WARMUP, WAIT + WARMUP + steps - 1

    def action(step: int) -> ProfilerAction:
        if step < WAIT or step > last:
            return ProfilerAction.NONE
        if step < first:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if step == last else ProfilerAction.RECORD

    return action


def _stepper(job: TrainingJob, batches: Iterator[Any]) -> Callable[[int], None]:
    def move(batch: Iterable[Any]) -> list[Any]:
        return [part.to(job.device, non_blocking=job.non_blocking) for part in batch]

    def loss_of(inputs: Any, targets: Any) -> Any:
        return job.criterion(job.model(inputs), targets)

    def back(loss: Any) -> Any:
        job.optimizer.zero_grad()
        loss.backward()
        return loss.detach()

    take, transfer = _named("data", functools.partial(next, batches)), _named("transfer", move)
    ahead, backward = _named("forward", loss_of), _named("backward", back)
    update = _named("optimizer", job.optimizer.step)

    def step(number: int) -> None:
        loss = backward(ahead(*transfer(take())))
        update()
        if job.after_step is not None:
            job.after_step(number, job.model, loss)

    return step


def profile_job(job: TrainingJob, *, steps: int = 5, trace: Path | str | None = None) -> Timeline:
    """A plan, a stepper, and a function that waits."""
    if not steps >= 1:
        raise ValueError(f"it takes a step or more to make a recording, not {steps}")
    on_gpu = job.device.startswith("cuda")
    plan, step = _plan(steps), _stepper(job, job.batches())
    waits_after = {WAIT + WARMUP - 1, WAIT + WARMUP + steps - 1} if on_gpu else set()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + on_gpu]
    with torch.profiler.profile(activities=activities, schedule=plan) as profiler:
        for number in range(WAIT + WARMUP + steps):
            step(number)
            if number in waits_after:
                torch.cuda.current_stream().synchronize()
            profiler.step()
    if trace is not None:
        path = Path(trace)
        path.parent.mkdir(exist_ok=True, parents=True)
        profiler.export_chrome_trace(str(path))
    return read_timeline(profiler)


Test = Callable[[float], bool]
"""Whether something is true of a moment."""


def _within(*groups: Iterable[Interval]) -> Test:
    spans = [span for group in groups for span in group]
    return lambda moment: any(start <= moment < stop for start, stop in spans)


def _and_not(test: Test, *others: Test) -> Test:
    return lambda moment: test(moment) and not any(other(moment) for other in others)


def where_time_goes(timeline: Timeline) -> DeviceTime:
    """Tests of moments, made of tests of moments; a moment stands for all until the next edge."""
    data, transfer = (timeline.regions.get(name, ()) for name in ("data", "transfer"))
    groups = (
        timeline.kernels, timeline.collectives, timeline.copies_in, timeline.copies_out, timeline.waits, data, transfer,
    )  # fmt: skip
    edges = sorted({edge for group in groups for span in group for edge in span} | {timeline.start, timeline.stop})
    edges = [edge for edge in edges if timeline.start <= edge <= timeline.stop]
    pieces = list(itertools.pairwise(edges))
    runs = _within(timeline.kernels, timeline.collectives)
    waits = _and_not(_within(timeline.waits, timeline.copies_out), _within(data), _within(transfer))
    waited = []
    begun, has_waited = None, False
    for begin, _ in pieces:
        if runs(begin):
            if begun is not None and has_waited:
                waited.append((begun, begin))
            begun, has_waited = None, False
        else:
            begun = begin if begun is None else begun
            has_waited = has_waited or waits(begin)
    if begun is not None and has_waited:
        waited.append((begun, timeline.stop))
    tests: list[tuple[str, Test]] = [
        ("compute", _within(timeline.kernels)),
        ("communication", _within(timeline.collectives)),
        ("data", _within(data)),
        ("transfer", _within(timeline.copies_in, transfer)),
        ("sync", _within(waited)),
        ("launch", lambda moment: True),
    ]

    def kind(moment: float) -> str:
        return next(name for name, test in tests if test(moment))

    found = {f"{name}_seconds": 0.0 for name, _ in tests}
    for begin, end in pieces:
        found[f"{kind(begin)}_seconds"] += (end - begin) / timeline.steps
    return DeviceTime(**found)


def find_bottleneck(times: DeviceTime, *, target: float = 0.8) -> Bottleneck:
    """A fold."""

    def larger(one: Bottleneck, other: Bottleneck) -> Bottleneck:
        return other if getattr(times, f"{other}_seconds") > getattr(times, f"{one}_seconds") else one

    enough = times.compute_seconds > times.step_seconds * target
    return "compute" if enough else functools.reduce(larger, LOSSES)
