"""A device named in an operation itself: `aten.zeros(..., device="cuda")` from inside a mode or a tensor subclass.

What a program calls names its device to the function mode, which is off in there. Here the operation is called once
more as the function that a program would have called. Not here: functions (`vgpu.dispatch.function_mode`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vgpu.handling.mode import seen_by
from vgpu.operations.operation import Operation

_LAYOUTS = (None, torch.strided)


def names_a_gpu(device: Any) -> bool:
    """Whether an operation's `device` is a GPU."""
    return device is not None and torch.device(device).type == "cuda"


def call_with_device(
    mode: TorchFunctionMode, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call the function of PyTorch that this operation stands for, so that the function mode gives it its place."""
    options = {key: value for key, value in kwargs.items() if value is not None}
    if options.get("layout") in _LAYOUTS:
        options.pop("layout", None)
    if not options.get("pin_memory"):
        options.pop("pin_memory", None)
    name = "to" if operation.base == "_to_copy" else operation.base
    if name == "to":
        options["copy"] = True
    function = getattr(torch if hasattr(torch, name) else torch.Tensor, name)
    with seen_by(mode), torch._C._EnableTorchFunction():
        return function(*args, **options)
