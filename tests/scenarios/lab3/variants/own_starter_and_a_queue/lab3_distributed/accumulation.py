"""Task 3.3: accumulate gradients over several small batches, on several ranks, as if they were one large batch.

Not for starting ranks or handing out data (ddp_training.py).
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit.results import AccumulationResult

IGNORED = -100
"""A target that does not count: padding of a text. `torch.nn.functional.cross_entropy` leaves it out by default."""
Batches = Iterable[tuple[Tensor, Tensor]]
"""Pairs (inputs, targets) on the CPU that can be gone through again and again: a DataLoader, a list of batches."""


def count_targets(targets: Tensor) -> int:
    """How many samples (or tokens) the mean loss of a batch is over.

    Args:
        targets: integer classes of any shape, of which IGNORED ones do not count; or numbers [N, ...], of which each of
            the N counts as one.
    """
    if targets.is_floating_point():
        return len(targets)
    return int((targets != IGNORED).sum().item())


def train_with_accumulation(
    model: nn.Module,
    train_loader: Batches,
    accumulation_steps: int = 4,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
    device: str | torch.device | None = None,
) -> AccumulationResult:
    """Go once through the data, with one optimizer step per window of `accumulation_steps` batches.

    Each step follows the gradient of the mean loss over *all* samples (or tokens: see `count_targets`) of the window on
    *all* ranks, however many each batch and each rank has. At the end a shorter window is a window, too: its mean is
    over its own samples. So the result is that of one large batch on one process.

    Gradients are exchanged once per optimizer step, not once per batch: in all, the ranks reduce as many bytes of
    gradients per step as the model has parameters. A few numbers more, such as counts of samples, may be exchanged.
    DistributedDataParallel decides in the *forward* pass whether the backward pass that follows is to exchange, so its
    `no_sync()` must be around both.

    Args:
        model: a DistributedDataParallel, or a plain module where there is only one process. It is put into training
            mode (`model.train()`) and trained in place. Gradients that it has from before count for nothing.
        train_loader: batches (inputs [N, ...], targets [N, ...]) of this rank. Batches may differ in size, also between
            ranks, and count at least one target each; every rank has the same number of batches.
        accumulation_steps: batches per window.
        optimizer: of the model's parameters, some of which may be frozen; None:
            `torch.optim.SGD(model.parameters(), lr=0.1)`.
        criterion: maps (outputs, targets) to the mean loss over what `count_targets` counts; None: cross entropy.
        device: where to train: the model is there already, the batches are not; None: where its parameters are.

    Returns:
        An `AccumulationResult`, the same on every rank: optimizer steps, batches on one rank, and per step the number
        of samples (or tokens) in the window on all ranks and the mean loss over them.

    Raises:
        ValueError: `accumulation_steps` is below 1.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html, no_sync
    """
    if accumulation_steps < 1:
        raise ValueError("accumulation_steps < 1")
    ddp, joined = isinstance(model, DistributedDataParallel), dist.is_initialized()
    device = torch.device(device or next(model.parameters()).device)
    step = (optimizer or torch.optim.SGD(model.parameters(), lr=0.1)).step
    criterion = criterion or torch.nn.CrossEntropyLoss()
    model.train().zero_grad()
    ranks = dist.get_world_size() if joined else 1
    rows, number = [], 0
    tally = torch.zeros(2, dtype=torch.float64, device=device)  # what counts, and the sum of its losses
    for number, (batch, following) in enumerate(itertools.pairwise(itertools.chain(train_loader, [None])), 1):
        x, y = batch
        n = count_targets(y)
        last = following is None or number % accumulation_steps == 0
        with contextlib.ExitStack() as stack:
            if ddp and not last:
                stack.enter_context(model.no_sync())
            loss = criterion(model(x.to(device)), y.to(device)) * n
            loss.backward()
        tally += torch.stack([tally.new_tensor(n), loss.detach().double()])
        if last:  # gradients are now the mean over ranks of sums; the mean over samples is wanted
            if joined:
                dist.all_reduce(tally)
            rows.append(tally.tolist())
            torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], ranks / rows[-1][0])
            step()
            model.zero_grad()
            tally.zero_()
    table = np.reshape(rows, (-1, 2))
    return AccumulationResult(
        optimizer_steps=len(rows),
        micro_batches=number,
        effective_batch_sizes=tuple(table[:, 0].astype(int).tolist()),
        losses=tuple((table[:, 1] / table[:, 0]).tolist()),
    )
