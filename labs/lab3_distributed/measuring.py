"""Task 3.2: time the training steps of several processes, and where their seconds go.

Not for what follows from the figures (scaling_analysis.py), nor for training anything useful: the steps learn from
random numbers.
"""

import functools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Literal

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
    # TODO(task 3.2):
    # 1. Refuse arguments that make no sense. setup; end with cleanup in any case.
    # 2. Time whole steps, then steps without exchange in two parts; medians.
    # 3. dist.all_gather_object sends every rank the figures of the others.
    raise NotImplementedError(
        "Task 3.2 is open: write measure_rank "
        "in labs/lab3_distributed/measuring.py (about 53 lines)"
    )


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
    # TODO(task 3.2): let run_ranks call measure_rank on as many processes as each world size says.
    raise NotImplementedError(
        "Task 3.2 is open: write measure_scaling "
        "in labs/lab3_distributed/measuring.py (about 2 lines)"
    )
