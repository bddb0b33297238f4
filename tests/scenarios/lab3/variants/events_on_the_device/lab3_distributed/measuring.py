"""Steps timed by CUDA events where there is a GPU, in closures that share a watch."""

import functools
import itertools
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.results import ScalingPoint, StepProfile

from .ddp_training import cleanup, setup
from .ranks import run_ranks

WORLD_SIZES = (1, 2, 4)
WIDTH, LAYERS = 2048, 4
Kind = str


class Watch:
    """Marks moments; with a GPU as events of its stream, at which it is idle."""

    def __init__(self, place):
        self.gpu, self.marks = place.type == "cuda", []

    def mark(self):
        if not self.gpu:
            self.marks.append(time.perf_counter())
            return
        torch.cuda.synchronize()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.marks.append(event)

    def laps(self):
        if self.gpu:
            torch.cuda.synchronize()
            return [first.elapsed_time(then) / 1e3 for first, then in itertools.pairwise(self.marks)]
        return [then - first for first, then in itertools.pairwise(self.marks)]


def measure_rank(
    rank, world_size, init_method=None, *, kind="strong", batch_size=256, device=None, model=None, batches=None,
    steps=5, warmup=2,
):  # fmt: skip
    if kind not in {"strong", "weak"}:
        raise ValueError(f"{kind=}")
    own = batch_size
    if kind == "strong":
        own, rest = divmod(batch_size, world_size)
        if rest:
            raise ValueError(f"{batch_size} samples on {world_size} ranks")
    place = setup(rank, world_size, init_method=init_method, device=device)
    try:
        net = (model or nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))).to(place)
        ddp = DistributedDataParallel(net, device_ids=[place] if place.type == "cuda" else None)
        batches = batches or itertools.cycle([(torch.randn(own, WIDTH), torch.randn(own, WIDTH))])
        sgd = torch.optim.SGD(net.parameters(), lr=0.001, foreach=False)

        def step(watch, ddp):
            watch.mark()
            x, y = next(batches)
            x, y = x.to(place, non_blocking=True), y.to(place, non_blocking=True)
            watch.mark()
            sgd.zero_grad(set_to_none=True)
            nn.functional.mse_loss(ddp(x), y).backward()
            sgd.step()
            watch.mark()
            return watch.laps()

        def series(ddp):
            return [step(Watch(place), ddp) for _ in range(warmup + steps)][warmup:]

        whole = statistics.median(sum(laps) for laps in series(ddp))
        alone = ddp.no_sync()
        alone.__enter__()
        parts = [statistics.median(column) for column in zip(*series(ddp), strict=True)]
        alone.__exit__(None, None, None)
        table = [None] * world_size
        dist.all_gather_object(table, (whole, *parts))
        backend = dist.get_backend()
        del ddp
    finally:
        cleanup()
    slowest = max(row[0] for row in table)
    return ScalingPoint(
        device=place.type,
        backend=backend,
        kind=kind,
        world_size=world_size,
        batch_size=own * world_size,
        step_seconds=slowest,
        samples_per_second=own * world_size / slowest,
        profile=StepProfile(
            data_seconds=tuple(data for _, data, _ in table),
            compute_seconds=tuple(compute for _, _, compute in table),
            communication_seconds=tuple(max(0.0, whole - data - compute) for whole, data, compute in table),
        ),
    )


def measure_scaling(
    world_sizes=WORLD_SIZES, *, kind="strong", batch_size=256, device=None, steps=5, start_method="spawn"
):
    job = functools.partial(measure_rank, kind=kind, batch_size=batch_size, device=device, steps=steps)
    return [run_ranks(job, size, start_method=start_method)[0] for size in world_sizes]
