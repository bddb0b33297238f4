"""Given: how the learning rate changes over a run: a linear warm-up, then half a cosine.

Not for deciding when a step counts (trainer.py).
"""

import math

import torch


def warmup_cosine(step: int, *, warmup_steps: int, total_steps: int, minimum_ratio: float = 0.0) -> float:
    """The learning rate of one optimizer step, as a factor of the highest one.

    While `step` < `warmup_steps` it is (step + 1) / warmup_steps, so the first step is not wasted on a rate of 0 and
    the last step of the warm-up has the full rate. From then on it falls along half a cosine from 1 to `minimum_ratio`:

        minimum_ratio + (1 - minimum_ratio) (1 + cos(pi p)) / 2
        with p = (step - warmup_steps) / (total_steps - warmup_steps)

    From step `total_steps` on, where the warm-up is over, it stays at `minimum_ratio`.

    Args:
        step: the number of optimizer steps taken before this one, from 0 on.
        warmup_steps: how many steps the warm-up takes; 0 for none.
        total_steps: how many steps the run takes, warm-up included.
        minimum_ratio: from 0 to 1.

    Source: Loshchilov and Hutter 2017, "SGDR" (arXiv:1608.03983), equation 5 without restarts; Goyal et al. 2017
        (arXiv:1706.02677), section 2.2, for the warm-up.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if step >= total_steps:
        return minimum_ratio
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return minimum_ratio + (1 - minimum_ratio) * (1 + math.cos(math.pi * progress)) / 2


def make_scheduler(
    optimizer: torch.optim.Optimizer, *, warmup_steps: int, total_steps: int, minimum_ratio: float
) -> torch.optim.lr_scheduler.LRScheduler:
    """A scheduler whose `step()` is called once per optimizer step that was really taken."""

    def factor(step: int) -> float:
        return warmup_cosine(step, warmup_steps=warmup_steps, total_steps=total_steps, minimum_ratio=minimum_ratio)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
