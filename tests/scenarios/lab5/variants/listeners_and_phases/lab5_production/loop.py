"""A training loop as a generator that calls a context manager around each of its parts."""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import torch

from labkit.profiling import REGIONS, Interval, TrainingJob

Around = Callable[[str], contextlib.AbstractContextManager[Any]]


def idle(job: TrainingJob) -> None:
    """Wait for the device."""
    if job.device.startswith("cuda"):
        torch.cuda.synchronize()


def steps_of(job: TrainingJob, around: Around) -> Generator[int, None, None]:
    """Make steps without end, one each time the next is asked for; yields its number when it is over."""
    batches = job.batches()
    for step in itertools.count():
        with around("data"):
            inputs, targets = next(batches)
        with around("transfer"):
            inputs = inputs.to(job.device, non_blocking=job.non_blocking)
            targets = targets.to(job.device, non_blocking=job.non_blocking)
        with around("forward"):
            loss = job.criterion(job.model(inputs), targets)
        with around("backward"):
            job.optimizer.zero_grad()
            loss.backward()
        with around("optimizer"):
            job.optimizer.step()
        if job.after_step is not None:
            job.after_step(step, job.model, loss.detach())
        yield step


class Stopwatch:
    """Times each part with the device idle at both ends."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._seen: dict[str, list[float]] = {}
        self.exchange = True

    @contextlib.contextmanager
    def time(self, name: str) -> Iterator[None]:
        alone = not self.exchange and name in ("forward", "backward")
        with self._job.model.no_sync() if alone else contextlib.nullcontext():
            idle(self._job)
            start = time.perf_counter()
            yield
            idle(self._job)
            self._seen[name].append(time.perf_counter() - start)

    def medians(self, parts: Iterator[int], warmup: int, steps: int) -> dict[str, float]:
        for count in (warmup, steps):
            self._seen = {name: [] for name in REGIONS}
            for _ in itertools.islice(parts, count):
                pass
        return {name: statistics.median(spans) for name, spans in self._seen.items()}


def touched(gaps: Iterable[Interval], looks: Iterable[Interval]) -> Iterator[Interval]:
    """The gaps that have a moment in common with a look; both sorted and without overlap."""
    coming = iter(looks)
    look = next(coming, None)
    for start, stop in gaps:
        while look is not None and look[1] <= start:
            look = next(coming, None)
        if look is None:
            return
        if look[0] < stop:
            yield start, stop
