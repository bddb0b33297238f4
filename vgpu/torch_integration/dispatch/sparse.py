"""Sparse tensors on a GPU: made of indices and values that are there, moved part by part.

Not here: residency of the parts (`vgpu.runtime.memory.residency`), and what operations on them cost
(`vgpu.runtime.operations`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vgpu.runtime.machine import Machine
from vgpu.runtime.memory.residency import dense_parts
from vgpu.runtime.unsupported import unsupported


def require_values(machine: Machine) -> None:
    """How many values a sparse tensor has is itself a value."""
    if not machine.values:
        raise unsupported("sparse tensors with shapes only")


def rebuilt(tensor: torch.Tensor, each: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """A sparse tensor of the same layout and shape from what `each` makes of its parts; the values get `dtype`."""
    *indices, values = dense_parts(tensor)
    moved = [each(part) for part in indices]
    result = each(values.to(dtype))
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        if tensor.layout is torch.sparse_coo:
            return torch.sparse_coo_tensor(
                moved[0], result, tensor.shape, is_coalesced=tensor.is_coalesced(), check_invariants=False
            )
        made: torch.Tensor = torch.sparse_compressed_tensor(
            moved[0], moved[1], result, tensor.shape, layout=tensor.layout, check_invariants=False
        )
        return made


def parts_of_call(args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The indices and values that a factory of sparse tensors is called with; empty where it gets only a size."""
    arguments = dict(zip(names, args, strict=False)) | {name: kwargs[name] for name in names if name in kwargs}
    first = arguments.get(names[0])
    if isinstance(first, (int, torch.Size)) or (isinstance(first, (list, tuple)) and len(arguments) == 1):
        return {}
    return arguments
