"""Helpers without side effects: casting a function, the rule of a loss scale, means that may be missing."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

P = ParamSpec("P")
R = TypeVar("R")


def home_of(model: nn.Module, device: str | torch.device | None) -> torch.device:
    """The device that was asked for, else that of the model's parameters."""
    if device is not None:
        return torch.device(device)
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def casting(function: Callable[P, R], device: torch.device, dtype: torch.dtype) -> Callable[P, R]:
    """The function, computed in autocast; as it is for float32."""
    return function if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)(function)


def moved(pairs: Iterable[tuple[Tensor, Tensor]], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The same pairs on the device, one at a time."""
    for inputs, targets in pairs:
        yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)


def weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float | None:
    """None where there is nothing to take the mean of."""
    return float(np.average(values, weights=weights)) if values else None


@dataclass(frozen=True)
class ScaleRule:
    """When and by how much a loss scale changes."""

    growth_factor: float
    backoff_factor: float
    growth_interval: int


@dataclass(frozen=True)
class ScaleState:
    """A scale, and how many good steps there were since it last changed."""

    scale: float
    good_steps: int = 0


def adapt(state: ScaleState, rule: ScaleRule, *, overflow: bool) -> ScaleState:
    """The state after one more step."""
    if overflow:
        return ScaleState(state.scale * rule.backoff_factor)
    if state.good_steps + 1 < rule.growth_interval:
        return replace(state, good_steps=state.good_steps + 1)
    return ScaleState(state.scale * rule.growth_factor)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no number is NaN or infinite; asks the device once."""
    flags = [torch.isfinite(tensor).all() for tensor in tensors]
    return not flags or bool(torch.stack(flags).all())


def clipped(gradients: Sequence[Tensor], largest: float) -> Sequence[Tensor]:
    """Gradients whose norm, taken over all of them, is `largest` at most."""
    if not gradients:
        return gradients
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return torch._foreach_mul(gradients, (largest / (total + 1e-6)).clamp(max=1.0))


def holes(losses: Iterable[float | None]) -> np.ma.MaskedArray:
    """Numbers to draw: a missing loss keeps its place."""
    return np.ma.masked_invalid(np.array([math.nan if loss is None else loss for loss in losses], dtype=float))
