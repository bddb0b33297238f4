"""Task 3.2: time the training steps of several processes, and where their seconds go.

Not for what follows from the figures (scaling_analysis.py), nor for training anything useful: the steps learn from
random numbers.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit.results import ScalingPoint, StepProfile

from .ddp_training import cleanup, setup
from .ranks import run_ranks

WORLD_SIZES = (1, 2, 4)
WIDTH, LAYERS = 2048, 4
Kind = Literal["strong", "weak"]


def make_model() -> nn.Sequential:
    """What is measured where nothing else is given: LAYERS square linear layers, 64 MiB of parameters in float32."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def make_batches(samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same random batch for `make_model`, [samples, WIDTH], without end."""
    batch = (torch.randn(samples, WIDTH), torch.randn(samples, WIDTH))
    while True:
        yield batch


def measure_rank(
    rank: int,
    world_size: int,
    init_method: str | None = None,
    *,
    kind: Kind = "strong",
    batch_size: int = 256,
    device: str | None = None,
    model: nn.Module | None = None,
    batches: Iterator[tuple[Tensor, Tensor]] | None = None,
    steps: int = 5,
    warmup: int = 2,
) -> ScalingPoint:
    """Be one rank of a measurement: join the others, time training steps, leave.

    A step takes the next batch, moves it to the device and trains on it: forward, mean squared difference, backward
    with DistributedDataParallel (as it is by default), `torch.optim.SGD` without momentum. Each figure is the median
    over `steps` steps, after `warmup` untimed ones, with the device idle whenever the clock is read:

    - the whole step, gradients exchanged, from the end of the step before to its own end;
    - then, in further steps *without* exchange (`no_sync`, or the module alone): data_seconds, until the batch is on
      the device, and compute_seconds, the rest of the step.

    A rank's communication_seconds are what the whole step takes beyond its own data_seconds and compute_seconds, never
    below 0.

    Args:
        rank: this process's number.
        world_size: number of processes.
        init_method: see `ddp_training.setup`, as for `device`.
        kind: "strong": batch_size is that of all ranks together, and each rank takes its share. "weak": it is that of
            each rank.
        batch_size: samples per step, a multiple of `world_size` if strong.
        device: "cpu" or "cuda".
        model: None: `make_model()`.
        batches: of this rank, on the CPU, without end; they cost what they cost, each time. None: `make_batches`, of as
            many samples as this rank has.
        steps: timed ones, of each sort.
        warmup: untimed ones before them, of each sort.

    Returns:
        A `ScalingPoint`, the same on every rank: its profile has the figures of all ranks, `step_seconds` is the median
        of the slowest.

    Raises:
        ValueError: `kind` is neither, or `batch_size` cannot be shared evenly.
        Exception: whatever else goes wrong on this rank, unchanged; it leaves the process group in any case.
    """
    if kind == "strong":
        own_batch, left = divmod(batch_size, world_size)
    elif kind == "weak":
        own_batch, left = batch_size, 0
    else:
        raise ValueError(f"{kind} is neither strong nor weak")
    if left:
        raise ValueError(f"{batch_size} samples on {world_size} ranks: {left} are left")
    with contextlib.ExitStack() as stack:
        stack.callback(cleanup)
        own = setup(rank, world_size, init_method=init_method, device=device)
        module = (make_model() if model is None else model).to(own)
        replica = DistributedDataParallel(module, device_ids=None if own.type == "cpu" else [own.index])
        supply = make_batches(own_batch) if batches is None else batches
        clock = functools.partial(_clock, own)
        descent = torch.optim.SGD(module.parameters(), lr=1e-4)
        whole = float(np.median(_laps(replica, supply, descent, own, clock, warmup + steps).sum(axis=1)[warmup:]))
        with replica.no_sync():
            data, compute = np.median(_laps(replica, supply, descent, own, clock, warmup + steps)[warmup:], axis=0)
        mine = Lap(whole, float(data), float(compute))
        laps: list[Lap] = [mine] * world_size
        dist.all_gather_object(laps, mine)
        backend = dist.get_backend()
        del replica
    slowest = max(lap.whole for lap in laps)
    return ScalingPoint(
        device=own.type,
        backend=str(backend),
        kind=kind,
        world_size=world_size,
        batch_size=own_batch * world_size,
        step_seconds=slowest,
        samples_per_second=own_batch * world_size / slowest,
        profile=StepProfile(
            data_seconds=tuple(lap.data for lap in laps),
            compute_seconds=tuple(lap.compute for lap in laps),
            communication_seconds=tuple(lap.exchange for lap in laps),
        ),
    )


@dataclasses.dataclass(frozen=True)
class Lap:
    """Median seconds of one rank."""

    whole: float
    data: float
    compute: float

    @property
    def exchange(self) -> float:
        """What is left."""
        return max(self.whole - self.data - self.compute, 0.0)


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _laps(
    replica: nn.Module,
    supply: Iterator[tuple[Tensor, Tensor]],
    descent: torch.optim.Optimizer,
    device: torch.device,
    clock: Callable[[], float],
    count: int,
) -> np.ndarray:
    """Seconds [steps, 2]: until the batch is there, and from then on."""
    marks = [clock()]
    for batch in itertools.islice(supply, count):
        inputs, targets = (part.to(device) for part in batch)
        marks.append(clock())
        descent.zero_grad()
        (replica(inputs) - targets).square().mean().backward()
        descent.step()
        marks.append(clock())
    return np.diff(marks).reshape(-1, 2)


def measure_scaling(
    world_sizes: Sequence[int] = WORLD_SIZES,
    *,
    kind: Kind = "strong",
    batch_size: int = 256,
    device: str | None = None,
    steps: int = 5,
    start_method: Literal["spawn", "fork"] = "spawn",
) -> list[ScalingPoint]:
    """Measure a training step (`measure_rank`) on several numbers of processes, which are started for it.

    Args:
        world_sizes: numbers of processes, one measurement each.
        kind: as in `measure_rank`, like the arguments that follow.
        batch_size: of all ranks together if strong, of each rank if weak.
        device: "cpu" or "cuda".
        steps: timed ones.
        start_method: as in `run_ranks`.

    Returns:
        One `ScalingPoint` per world size, in their order.
    """
    points = []
    for ranks in world_sizes:
        options = {"kind": kind, "batch_size": batch_size, "device": device, "steps": steps}
        first, *_ = run_ranks(functools.partial(measure_rank, **options), ranks, start_method=start_method)
        points.append(first)
    return points
