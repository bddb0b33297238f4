"""Sizes that CUDA's kernels do not take and the CPU's do: tables of fixed length, grids that are too large.

Not here: which operations those are (`vgpu.runtime.operations.table`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vgpu.runtime.faults import cuda_error
from vgpu.runtime.operations.operation import Operation

Check = Callable[[Sequence[Any], Mapping[str, Any]], None]
_TABLE_LENGTH = 25
"""`MAX_TENSORINFO_DIMS` (aten/src/ATen/cuda/detail/TensorInfo.cuh). A kernel's table must have one place to spare."""


def require(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise RuntimeError as CUDA does for too many dimensions (native/cuda/Sorting.cpp, TensorInfo.cuh)."""
    along = operation.base == "kthvalue" or len(args) > 1 or "dim" in kwargs
    if not along:
        return  # a median of all elements sorts them in a row
    dimensions = args[0].dim()
    if dimensions > _TABLE_LENGTH:
        name = "" if operation.base == "kthvalue" else "median() "
        raise RuntimeError(f"{name}cannot operate on more than {_TABLE_LENGTH} dimensions")
    if dimensions == _TABLE_LENGTH and args[0].numel():
        raise RuntimeError("CUDA Tensors cannot have more than 25 dimensions")


_LARGEST_GRID = 65535
"""In y and z (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")."""


def fractional_pool(spatial: int) -> Check:
    """Planes are the grid's y, images its z (FractionalMaxPool2d.cu)."""

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if any(size > _LARGEST_GRID for size in args[0].shape[:-spatial]):
            raise cuda_error("invalid configuration argument")

    return check
