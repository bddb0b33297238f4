"""Task 3.2: time the training steps of several processes, and where their seconds go.

Not for what follows from the figures (scaling_analysis.py), nor for training anything useful: the steps learn from
random numbers.
"""

import functools
import timeit
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit.results import ScalingPoint, StepProfile

from .ddp_training import cleanup, setup
from .lift import lift

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
    if kind not in Kind.__args__:
        raise ValueError(kind)
    each, rest = divmod(batch_size, world_size) if kind == "strong" else (batch_size, 0)
    if rest:
        raise ValueError(f"{batch_size} / {world_size} leaves {rest}")
    own = setup(rank, world_size, init_method=init_method, device=device)
    try:
        net = (model if model is not None else make_model()).to(own)
        whole = DistributedDataParallel(net)
        sgd = torch.optim.SGD(net.parameters())
        batches = batches or make_batches(each)
        idle = torch.cuda.synchronize if own.type == "cuda" else (lambda: None)

        def clock():
            idle()
            return timeit.default_timer()

        def step(forward):
            t = [clock()]
            x, y = (z.to(own) for z in next(batches))
            if forward is net:
                t.append(clock())
            ((forward(x) - y) ** 2).mean().backward()
            sgd.step()
            sgd.zero_grad()
            return np.diff([*t, clock()])

        def median(forward):
            return np.median([step(forward) for _ in range(warmup + steps)][warmup:], axis=0)

        mine = torch.tensor(np.concatenate([median(whole), median(net)]))
        everybody = [torch.empty_like(mine) for _ in range(world_size)]
        dist.all_gather(everybody, mine, group=dist.new_group(backend="gloo"))  # on the CPU
        t, d, c = np.array([row.tolist() for row in everybody]).T
        backend = dist.get_backend()
    finally:
        cleanup()
    profile = StepProfile(
        data_seconds=tuple(d), compute_seconds=tuple(c), communication_seconds=tuple(np.clip(t - d - c, 0, None))
    )
    n = each * world_size
    where = {"device": own.type, "backend": backend, "kind": kind, "world_size": world_size}
    return ScalingPoint(**where, batch_size=n, step_seconds=t.max(), samples_per_second=n / t.max(), profile=profile)


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
    job = functools.partial(measure_rank, kind=kind, batch_size=batch_size, device=device, steps=steps)
    return [lift(job, n, start_method)[0] for n in world_sizes]
