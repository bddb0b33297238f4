"""Accumulation by functions that return functions, and a generator of windows; gradients are weighed, not losses."""

import contextlib
from functools import reduce

import torch
import torch.distributed as dist

from labkit.results import AccumulationResult


def windows_of(batches, length):
    window = []
    for batch in batches:
        window.append(batch)
        if len(window) == length:
            yield window
            window = []
    if window:
        yield window


def counter_of(targets):
    return targets.shape[0] if targets.is_floating_point() else torch.ne(targets, -100).count_nonzero().item()


def summing():
    if not dist.is_initialized():
        return 1, lambda numbers: numbers

    def everywhere(numbers):
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, numbers)
        return [sum(column) for column in zip(*told, strict=True)]

    return dist.get_world_size(), everywhere


def silence_of(model):
    return getattr(model, "no_sync", contextlib.nullcontext)


def train_with_accumulation(model, train_loader, accumulation_steps=4, *, optimizer=None, criterion=None, device=None):
    if not accumulation_steps >= 1:
        raise ValueError(accumulation_steps)
    place = torch.device(device) if device else next(model.parameters()).device
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer or torch.optim.SGD(learned, 0.1, foreach=False)
    measure = criterion or torch.nn.functional.cross_entropy
    ranks, everywhere = summing()
    silence = silence_of(model)

    def backward(seen, batch):
        inputs, targets = (tensor.to(place) for tensor in batch)
        count = counter_of(targets)
        loss = measure(model(inputs), targets).mul(count)
        loss.backward()
        return seen[0] + loss.item(), seen[1] + count

    def step(window):
        optimizer.zero_grad(set_to_none=False)
        with silence():
            so_far = reduce(backward, window[:-1], (0.0, 0))
        loss, count = everywhere(backward(so_far, window[-1]))
        for parameter in learned:
            if parameter.grad is not None:
                parameter.grad.mul_(ranks).div_(count)
        optimizer.step()
        return len(window), count, loss / count

    model.train()
    told = [step(window) for window in windows_of(train_loader, accumulation_steps)]
    lengths, counts, losses = zip(*told, strict=True) if told else ((), (), ())
    return AccumulationResult(
        optimizer_steps=len(told), micro_batches=sum(lengths), effective_batch_sizes=tuple(counts), losses=tuple(losses)
    )
