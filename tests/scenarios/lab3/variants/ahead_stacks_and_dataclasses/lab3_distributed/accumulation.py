"""Task 3.3: accumulate gradients over several small batches, on several ranks, as if they were one large batch.

Not for starting ranks or handing out data (ddp_training.py).
"""

import contextlib
import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Step:
    """What became of a window, on all ranks."""

    batches: int
    samples: int
    loss: float


def _backward(
    model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor, weight: float
) -> Tensor:
    """Forward and backward of a batch whose loss has this weight; its mean loss."""
    mean = loss_of(model(inputs), targets)
    mean.mul(weight).backward()
    return mean.detach()


def _total(values: list[float], place: torch.device) -> list[float]:
    """Each value, summed over the ranks."""
    if not dist.is_initialized():
        return values
    sums = torch.tensor(values, dtype=torch.float64, device=place)
    dist.all_reduce(sums)
    return list(map(float, sums))


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
    if accumulation_steps <= 0:
        raise ValueError(f"at least one batch per window, not {accumulation_steps}")
    place = next(model.parameters()).device if device is None else torch.device(device)
    descent = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    loss_of = nn.functional.cross_entropy if criterion is None else criterion
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    for module in model.modules():
        module.training = True

    steps: list[Step] = []
    waiting = iter(train_loader)
    ahead = list(itertools.islice(waiting, accumulation_steps))
    while ahead:
        window, ahead = ahead, list(itertools.islice(waiting, accumulation_steps))
        counts = [count_targets(targets) for _, targets in window]
        everywhere = _total([float(sum(counts))], place)[0]
        means = []
        descent.zero_grad(set_to_none=False)
        with contextlib.ExitStack() as quiet:
            if isinstance(model, DistributedDataParallel):
                quiet.enter_context(model.no_sync())
            for (inputs, targets), count in zip(window[:-1], counts[:-1], strict=True):
                means.append(_backward(model, loss_of, inputs.to(place), targets.to(place), count * ranks / everywhere))
        inputs, targets = window[-1]
        means.append(_backward(model, loss_of, inputs.to(place), targets.to(place), counts[-1] * ranks / everywhere))
        descent.step()
        own = float(np.dot([float(mean) for mean in means], counts))
        steps.append(Step(len(window), int(everywhere), _total([own], place)[0] / everywhere))
    return AccumulationResult(
        optimizer_steps=len(steps),
        micro_batches=sum(step.batches for step in steps),
        effective_batch_sizes=tuple(step.samples for step in steps),
        losses=tuple(step.loss for step in steps),
    )
