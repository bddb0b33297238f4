"""Operations whose CUDA kernels carry sizes and strides in a table of fixed length, where the CPU's take 64 dimensions.

Not here: which operations those are (`vgpu.runtime.operations.table`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vgpu.runtime.operations.operation import Operation

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
