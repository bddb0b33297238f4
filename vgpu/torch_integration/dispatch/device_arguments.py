"""A device named in an operation itself: `aten.zeros(..., device="cuda")` from inside a mode or a tensor subclass.

A program's call names its device to the function mode, which is off in there. Here the operation is called once
more, with the device underneath. Not here: functions (`vgpu.torch_integration.dispatch.function_mode`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from vgpu.runtime.operations.operation import Operation
from vgpu.torch_integration.devices import place
from vgpu.torch_integration.dispatch import factories
from vgpu.torch_integration.handling_mode import HandlingMode, seen_by


def names_a_gpu(device: Any) -> bool:
    """Whether an operation's `device` is a GPU."""
    return device is not None and torch.device(device).type == "cuda"


def call_with_device(mode: HandlingMode, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an operation whose `device` is a GPU, so that what it makes or moves is there."""
    device = kwargs["device"]
    if operation.base != "_to_copy":
        return factories.create(
            mode, operation.overload, tuple(args), dict(kwargs), place(mode.machine, device), device
        )
    options = {key: value for key, value in kwargs.items() if value is not None and key not in ("layout", "pin_memory")}
    with seen_by(mode), torch._C._EnableTorchFunction():
        return cast(Any, torch.Tensor.to)(*args, copy=True, **options)
