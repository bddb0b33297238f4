"""The course's own numerical tools: a control experiment uses them instead of a student's that are wrong."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def find_nonfinite(model: nn.Module) -> list[str]:
    """Names of the parameters whose gradients are not finite."""
    gradients = ((name, parameter.grad) for name, parameter in model.named_parameters())
    return [name for name, gradient in gradients if gradient is not None and not torch.isfinite(gradient).all()]


def trace_nonfinite(model: nn.Module, inputs: Tensor, *, dtype: torch.dtype = torch.float16) -> str | None:
    """The first module of the unstable model to return something that is not finite: it has no buffers, and no
    module of it returns anything but a tensor.
    """
    names: list[str] = []

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def note(_: nn.Module, arguments: object, output: Tensor) -> None:
            if not torch.isfinite(output).all():
                names.append(name)

        return module.register_forward_hook(note)

    handles = [watch(name, module) for name, module in model.named_modules()]
    try:
        with torch.no_grad(), torch.autocast(inputs.device.type, dtype=dtype, enabled=dtype != torch.float32):
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return names[0] if names else None


class DynamicLossScale:
    """The loss scale by the rule of its docstring."""

    def __init__(
        self,
        initial_scale: float = 2.0**16,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self.scale = float(initial_scale)
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval
        self._good_steps = 0

    def update(self, overflow: bool) -> None:
        """A step has ended, with or without an overflow."""
        self._good_steps = 0 if overflow else self._good_steps + 1
        if overflow:
            self.scale *= self.backoff_factor
        elif self._good_steps == self.growth_interval:
            self.scale, self._good_steps = self.scale * self.growth_factor, 0


TOOLS = {tool.__name__: tool for tool in (find_nonfinite, trace_nonfinite, DynamicLossScale)}
