"""Whether the host waits for the device, by the arguments of a call.

Sources: the notes on synchronisation in the documentation of torch.linalg, and the files named next to the rules, below
aten/src/ATen/native. Not here: operations that always wait (`vgpu.runtime.operations.table`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations.operation import Operation, needs_values


def checks_errors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """`linalg.inv_ex` and its like read whether they failed only if they are asked to (BatchLinearAlgebra.cpp)."""
    return bool(kwargs.get("check_errors", False))


def finds_its_range(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """`histc` with equal ends looks for the smallest and largest element (cuda/SummaryOps.cu, `_histc_cuda`)."""
    low, high = (args[place] if len(args) > place else 0 for place in (2, 3))
    return bool(kwargs.get("min", low) == kwargs.get("max", high))


def checks_deviations(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """`normal` wants deviations that are not negative, and looks at them (DistributionTemplates.h)."""
    return isinstance(kwargs.get("std", args[1] if len(args) > 1 else None), torch.Tensor)


def waits(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call makes the host wait until the device has computed it."""
    if operation.synchronises or (operation.waits is not None and operation.waits(args, kwargs)):
        return True
    return operation.depends_on_data and needs_values(operation, args)
