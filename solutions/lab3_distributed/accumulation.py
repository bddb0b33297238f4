"""Task 3.3: accumulate gradients over several small batches, on several ranks, as if they were one large batch.

Not for starting ranks or handing out data (ddp_training.py).
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable

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
    # TODO(task 3.3):
    # 1. Refuse arguments that make no sense; fill in what was not given.
    # 2. Take the batches in windows; the last one may be shorter.
    # 3. Per window: count its samples on all ranks (dist.all_reduce, if there is a process group).
    # 4. Weigh each batch so that the sum over the window and the *mean* over ranks that DistributedDataParallel takes
    #    is the mean over all samples.
    # 5. Only the last batch of the window exchanges gradients: forward and backward of the others in no_sync().
    # 6. Step once per window; sum up the loss of the window over all ranks.
    # --- solution: task 3.3 ---
    if accumulation_steps < 1:
        raise ValueError(f"accumulation_steps starts at 1, got {accumulation_steps}")
    device = next(model.parameters()).device if device is None else torch.device(device)
    model.train()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = criterion or nn.CrossEntropyLoss()
    ranks = dist.get_world_size() if dist.is_initialized() else 1

    batches = iter(train_loader)
    sizes: list[int] = []
    losses: list[float] = []
    micro_batches = 0
    while window := list(itertools.islice(batches, accumulation_steps)):
        counts = [count_targets(targets) for _, targets in window]
        everywhere = int(_sum_over_ranks(torch.tensor(sum(counts), device=device)).item())
        window_loss = torch.zeros((), dtype=torch.float64, device=device)
        optimizer.zero_grad()
        for index, ((inputs, targets), count) in enumerate(zip(window, counts, strict=True)):
            with _without_exchange(model, when=index < len(window) - 1):
                mean = criterion(model(inputs.to(device)), targets.to(device))
                (mean * (count * ranks / everywhere)).backward()
            window_loss += mean.detach().double() * count
        optimizer.step()
        micro_batches += len(window)
        sizes.append(everywhere)
        losses.append(float(_sum_over_ranks(window_loss).item()) / everywhere)
    return AccumulationResult(
        optimizer_steps=len(sizes),
        micro_batches=micro_batches,
        effective_batch_sizes=tuple(sizes),
        losses=tuple(losses),
    )
    # --- end ---


# --- solution only ---
def _sum_over_ranks(value: Tensor) -> Tensor:
    """Add up in place; a process without a group is alone."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def _without_exchange(model: nn.Module, *, when: bool) -> contextlib.AbstractContextManager[None]:
    """Around forward and backward: gradients stay on this rank."""
    if when and isinstance(model, DistributedDataParallel):
        silent: contextlib.AbstractContextManager[None] = model.no_sync()
        return silent
    return contextlib.nullcontext()


# --- end ---
