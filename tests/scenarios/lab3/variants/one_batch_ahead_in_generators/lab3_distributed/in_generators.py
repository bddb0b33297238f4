"""Generators and folds instead of loops."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset

from labkit.results import AccumulationResult


def ahead(loader, device):
    """The batches on the device, each moved there before the one in front of it is trained on."""
    waiting = None
    for batch in loader:
        moved = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
        if waiting is not None:
            yield waiting
        waiting = moved
    if waiting is not None:
        yield waiting


@contextlib.contextmanager
def evaluating(model):
    """In evaluation mode; afterwards each module is what it was."""
    before = {module: module.training for module in model.modules()}
    try:
        yield model.eval()
    finally:
        for module, mode in before.items():
            module.training = mode


@torch.no_grad()
def evaluate(model, dataset, *, device=None, batch_size=64):
    if not len(dataset):
        raise ValueError("nothing to evaluate")
    together = dist.is_available() and dist.is_initialized()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    inner = getattr(model, "module", model) if isinstance(model, nn.parallel.DistributedDataParallel) else model
    device = device or next(inner.parameters()).device
    places = np.array_split(np.arange(len(dataset)), ranks)[rank].tolist()
    with evaluating(model):
        hits = [
            (inner(inputs).argmax(1) == classes).sum()
            for inputs, classes in ahead(DataLoader(Subset(dataset, places), batch_size=batch_size), device)
        ]
    right = functools.reduce(operator.add, hits, torch.zeros((), dtype=torch.long, device=device))
    if together:
        dist.all_reduce(right, op=dist.ReduceOp.SUM)
    return right.item() / len(dataset)


def train_with_accumulation(model, train_loader, accumulation_steps=4, *, optimizer=None, criterion=None, device=None):
    from .accumulation import count_targets

    if accumulation_steps <= 0:
        raise ValueError("a window has one batch at least")
    model.train(True)
    device = torch.device(device) if device is not None else next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    criterion = nn.functional.cross_entropy if criterion is None else criterion
    together = dist.is_initialized()
    ranks = dist.get_world_size() if together else 1
    numbers, losses = [], []
    batches = 0
    numbered = enumerate(ahead(train_loader, device))
    for _, group in itertools.groupby(numbered, key=lambda pair: pair[0] // accumulation_steps):
        window = [batch for _, batch in group]
        batches += len(window)
        own = [count_targets(targets) for _, targets in window]
        sums = [None] * ranks
        if together:
            dist.all_gather_object(sums, sum(own))
        else:
            sums = [sum(own)]
        everybody = sum(sums)
        optimizer.zero_grad(set_to_none=True)
        terms = []
        *silent, last = zip(window, own, strict=True)
        quiet = model.no_sync() if together and hasattr(model, "no_sync") else contextlib.nullcontext()
        with quiet:
            for (inputs, targets), count in silent:
                term = criterion(model(inputs), targets) * count
                (term * ranks / everybody).backward()
                terms.append(term.detach())
        (inputs, targets), count = last
        term = criterion(model(inputs), targets) * count
        (term * ranks / everybody).backward()
        terms.append(term.detach())
        optimizer.step()
        total = torch.stack(terms).double().sum()
        if together:
            dist.all_reduce(total)
        numbers.append(everybody)
        losses.append((total / everybody).item())
    return AccumulationResult(
        optimizer_steps=len(numbers),
        micro_batches=batches,
        effective_batch_sizes=tuple(numbers),
        losses=tuple(losses),
    )


def speedup(points, kind="strong"):
    mine = sorted((point for point in points if point.kind == kind), key=lambda point: point.world_size)
    alone = next((point for point in mine if point.world_size == 1), None)
    if alone is None:
        raise ValueError(f"one process was not measured ({kind})")
    work = {"strong": lambda size: 1, "weak": lambda size: size}[kind]
    return {p.world_size: work(p.world_size) * alone.step_seconds / p.step_seconds for p in mine}


def efficiency(points, kind="strong"):
    return {size: ratio / size for size, ratio in speedup(points, kind).items()}


def split_step(profile):
    table = np.array([profile.data_seconds, profile.compute_seconds, profile.communication_seconds])
    data, compute, _ = table.mean(axis=1)
    work = table[:2].sum(axis=0)
    return {
        "communication": float(table[2].min()),
        "data": float(data),
        "imbalance": float(work.max() - work.mean()),
        "compute": float(compute),
    }


def communication_share(profile):
    parts = split_step(profile)
    return parts["communication"] / functools.reduce(operator.add, parts.values())


def name_bottleneck(profile, *, threshold=0.2):
    parts = split_step(profile)
    whole = sum(parts.values())
    name, seconds = sorted(list(parts.items())[:3], key=lambda pair: -pair[1])[0]
    return "compute" if seconds < threshold * whole else name
