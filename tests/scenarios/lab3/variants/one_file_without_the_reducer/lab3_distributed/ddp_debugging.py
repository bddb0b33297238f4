"""The script fixed without `find_unused_parameters`: unused parameters are given a gradient of zero."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, DistributedSampler

from labkit import data, models
from labkit.results import DdpTraining

from .ddp_training import cleanup, setup


class EveryParameter(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x) + 0.0 * sum(parameter.sum() for parameter in self.model.parameters())


def train_two_heads(
    rank,
    world_size,
    init_method=None,
    *,
    device=None,
    model=None,
    dataset=None,
    epochs=2,
    batch_size=32,
    learning_rate=0.05,
    timeout_seconds=600.0,
):
    place = setup(rank, world_size, init_method=init_method, device=device, timeout_seconds=timeout_seconds)
    try:
        dataset = dataset or data.load("digits")
        ddp = DDP(EveryParameter((model or models.mlp()).to(place)))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=learning_rate)
        sampler = DistributedSampler(dataset)
        start, losses, steps = time.perf_counter(), [], 0
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            sums = torch.zeros(2, dtype=torch.float64)
            for x, y in DataLoader(dataset, batch_size=batch_size, sampler=sampler):
                loss = torch.nn.functional.cross_entropy(ddp(x.to(place)), y.to(place))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                sums += torch.tensor([loss.item() * len(x), len(x)], dtype=torch.float64)
                steps += 1
            sums = sums.to(place)
            dist.all_reduce(sums)
            losses.append((sums[0] / sums[1]).item())
        backend = dist.get_backend()
        del ddp
    finally:
        cleanup()
    return DdpTraining(
        device=place.type,
        backend=backend,
        world_size=world_size,
        batch_size=batch_size,
        effective_batch_size=batch_size * world_size,
        epochs=epochs,
        losses=tuple(losses),
        optimizer_steps=steps,
        accuracy=None,
        seconds=time.perf_counter() - start,
    )
