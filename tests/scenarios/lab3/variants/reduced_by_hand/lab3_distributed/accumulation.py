"""Task 3.3: accumulate gradients over several small batches, on several ranks, as if they were one large batch.

Not for starting ranks or handing out data (ddp_training.py).
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit.results import AccumulationResult

from .roles import from_all

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
        raise ValueError(f"a window has one batch at least, not {accumulation_steps}")
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = criterion or nn.functional.cross_entropy
    place = next(model.parameters()).device if device is None else torch.device(device)
    silence = model.no_sync if isinstance(model, DistributedDataParallel) else contextlib.nullcontext
    model.train()
    sizes: list[int] = []
    mine: list[list[Tensor]] = []  # of each window: what each batch adds to the mean loss
    backwards = 0
    for window in _windows(train_loader, accumulation_steps):
        counts = [count_targets(targets) for _, targets in window]
        everybodys = from_all(sum(counts))
        sizes.append(sum(everybodys))
        model.zero_grad()
        mine.append([])
        for (inputs, targets), count in zip(window, counts, strict=True):
            with silence():
                loss = criterion(model(inputs.to(place)), targets.to(place))
                loss.backward(torch.full_like(loss, count / sizes[-1]))
            mine[-1].append(loss.detach() * count)
            backwards += 1
        if len(everybodys) > 1:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            flat = torch.nn.utils.parameters_to_vector(gradients)
            dist.all_reduce(flat)
            torch.nn.utils.vector_to_parameters(flat, gradients)
        optimizer.step()
    sums = from_all([sum(part.double().item() for part in parts) for parts in mine])
    return AccumulationResult(
        optimizer_steps=len(sizes),
        micro_batches=backwards,
        effective_batch_sizes=tuple(sizes),
        losses=tuple(sum(parts) / size for *parts, size in zip(*sums, sizes, strict=True)),
    )


def _windows(batches: Batches, length: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    source = iter(batches)
    while window := list(itertools.islice(source, length)):
        yield window
