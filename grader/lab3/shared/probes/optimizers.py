"""Optimizers that have made some steps, and what their groups say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def trained(
    model: nn.Module, inputs: Tensor, *, steps: int = 3, rate: float = 0.01, adam: bool = False, decay: float = 0.0
) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam, that has some; the first parameter has a learning rate of its own."""
    first, *others = model.parameters()
    groups: list[dict[str, object]] = [{"params": [first], "lr": rate / 2}, {"params": others}]
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(groups, lr=rate, weight_decay=decay, betas=(0.9 - decay, 0.999 - decay))
        if adam
        else torch.optim.SGD(groups, lr=rate, weight_decay=decay, momentum=0.9 - decay)
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs.double()).square().mean().backward()
        optimizer.step()
    return optimizer


def numbers_of(group: Mapping[str, Any]) -> list[float]:
    """The numbers among a group's options, by their names. `Any`: an option may be anything."""
    options = [group[name] for name in sorted(group) if name not in ("params", "lr")]
    numbers = [number for option in options for number in (option if isinstance(option, (tuple, list)) else (option,))]
    return [float(number) for number in numbers if isinstance(number, (int, float))]
