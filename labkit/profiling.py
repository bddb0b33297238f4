"""What Lab 5 profiles, and what a recording says: a training loop's parts, and a timeline in plain intervals.

Not for recording (`torch.profiler` does that, in the lab) nor for drawing conclusions from what was recorded.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

REGIONS = ("data", "transfer", "forward", "backward", "optimizer")
"""The named regions of a training step, in their order."""
STEP_PREFIX = "ProfilerStep"
"""How `torch.profiler` begins the names of the steps that its schedule counts; "#3" or "*" follows."""
MICROSECOND = 1e-6

Interval = tuple[float, float]
"""Start and end in seconds."""


@dataclass(kw_only=True)
class TrainingJob:
    """The parts of a training loop.

    One step takes the next batch, moves inputs and targets to the device, computes `criterion(model(inputs), targets)`,
    clears the old gradients and goes backward, lets the optimizer step, and calls `after_step(step, model, loss)`;
    steps count from 0.
    """

    model: nn.Module
    """On `device`, in training mode; a DistributedDataParallel where there are several processes."""
    optimizer: torch.optim.Optimizer
    loader: Iterable[tuple[Tensor, Tensor]]
    """Gives batches (inputs, targets) on the CPU, of `batch_size` samples each."""
    batch_size: int
    device: str
    """"cuda" or "cpu"."""
    criterion: Callable[[Tensor, Tensor], Tensor] = nn.functional.mse_loss
    non_blocking: bool = False
    """How batches go to the device: `tensor.to(device, non_blocking=...)`."""
    after_step: Callable[[int, nn.Module, Tensor], object] | None = None
    """What the loop does besides training, such as logging; the gradients are still there."""

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches without end: the loader starts again whenever it is through."""
        while True:
            yield from self.loader

    def train(self, step: int, inputs: Tensor, targets: Tensor) -> None:
        """The whole of step number `step` but its waiting for the batch."""
        inputs = inputs.to(self.device, non_blocking=self.non_blocking)
        targets = targets.to(self.device, non_blocking=self.non_blocking)
        loss = self.criterion(self.model(inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.after_step is not None:
            self.after_step(step, self.model, loss.detach())


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What a recording saw, as intervals in seconds on one clock; in any order, and they may overlap."""

    start: float
    """When the first recorded step began."""
    stop: float
    """When the last one had ended, on the device as well."""
    steps: int
    """How many were recorded."""
    kernels: tuple[Interval, ...]
    """Kernels on the device other than collectives. On a CPU, where the host itself computes: its computing regions."""
    collectives: tuple[Interval, ...]
    """NCCL's kernels."""
    copies_in: tuple[Interval, ...]
    """Copies from the host to the device."""
    copies_out: tuple[Interval, ...]
    """Copies from the device to the host."""
    waits: tuple[Interval, ...]
    """Calls in which the host waits for the device (cudaStreamSynchronize and its like)."""
    regions: dict[str, tuple[Interval, ...]]
    """What the host was doing, by name of the region."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments as intervals that are sorted and do not touch."""
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif stop > start:
            merged.append((start, stop))
    return merged


def intersect(left: Iterable[Interval], right: Iterable[Interval]) -> list[Interval]:
    """The moments that lie in both."""
    firsts, seconds, common = union(left), union(right), []
    i = j = 0
    while i < len(firsts) and j < len(seconds):
        start, stop = max(firsts[i][0], seconds[j][0]), min(firsts[i][1], seconds[j][1])
        if start < stop:
            common.append((start, stop))
        if firsts[i][1] < seconds[j][1]:
            i += 1
        else:
            j += 1
    return common


def subtract(left: Iterable[Interval], right: Iterable[Interval]) -> list[Interval]:
    """The moments of `left` that do not lie in `right`."""
    edges = [-float("inf"), *(edge for span in union(right) for edge in span), float("inf")]
    return intersect(left, zip(edges[::2], edges[1::2], strict=True))


def total(intervals: Iterable[Interval]) -> float:
    """Seconds of all moments together; those that lie in several intervals count once."""
    return sum(stop - start for start, stop in union(intervals))


def read_timeline(recorded: Any) -> Timeline:
    """Sort the events of a recording.

    Args:
        recorded: a `torch.profiler.profile` that has recorded steps (its schedule counted them, `step()` was called).

    Returns:
        The `Timeline` from the start of the first recorded step to the end of the last, or of its last kernel.

    Raises:
        ValueError: it recorded no step.
    """
    kernels, collectives, copies_in, copies_out, waits, steps = ([] for _ in range(6))
    regions: dict[str, list[Interval]] = {name: [] for name in REGIONS}
    for event in recorded.events():
        span = (event.time_range.start * MICROSECOND, event.time_range.end * MICROSECOND)
        name = event.name
        if event.device_type.name == "CPU":
            if name.startswith(STEP_PREFIX):
                steps.append(span)
            elif name in regions:
                regions[name].append(span)
            elif name.startswith("cuda") and name.endswith("Synchronize"):
                waits.append(span)
        elif name.startswith("Memcpy HtoD"):
            copies_in.append(span)
        elif name.startswith("Memcpy DtoH"):
            copies_out.append(span)
        elif name.startswith("nccl"):
            collectives.append(span)
        # Regions and steps are listed for the device as well; other copies and fills are the device's own work.
        elif name not in regions and not name.startswith(STEP_PREFIX) and not event.is_user_annotation:
            kernels.append(span)
    if not steps:
        raise ValueError("no step was recorded: the profiler needs a schedule, and step() at the end of each step")
    if not kernels and not copies_in:
        kernels = [span for name in ("forward", "backward", "optimizer") for span in regions[name]]
    start = min(begin for begin, _ in steps)
    stop = max(end for _, end in [*steps, *kernels, *collectives])
    return Timeline(
        start=start,
        stop=stop,
        steps=len(steps),
        kernels=tuple(kernels),
        collectives=tuple(collectives),
        copies_in=tuple(copies_in),
        copies_out=tuple(copies_out),
        waits=tuple(waits),
        regions={name: tuple(spans) for name, spans in regions.items()},
    )
