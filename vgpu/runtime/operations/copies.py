"""Which copies within a GPU are plain ones, for which CUDA starts no kernel, and whose storage a tensor may take.

aten/src/ATen/native/cuda/Copy.cu, `copy_device_to_device`: cudaMemcpyAsync for the same dtype and dense, equal layouts.
Not here: copies between devices (`vgpu.runtime.gpu.VirtualGPU.transfer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime import attachment
from vgpu.runtime.operations.operation import Operation


def is_memcpy(operation: Operation, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether an operation on tensors of one GPU is such a copy."""
    if not operation.copies or operation.is_foreach:
        return False
    tensors = inputs[:2] if operation.mutates else [*inputs[:1], *outputs[:1]]
    if len(tensors) < 2:
        return False
    target, source = tensors
    return (
        target.layout is source.layout is torch.strided
        and (target.dtype, target.shape, target.stride()) == (source.dtype, source.shape, source.stride())
        and (target.is_conj(), target.is_neg()) == (source.is_conj(), source.is_neg())
        and _is_dense(target)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a range of memory, each place once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def require_one_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """`tensor.set_(source)`: a tensor stays on its device (Resize.h, `checkSetStorage`)."""
    machine = attachment.machine()
    if machine is None or len(args) < 2:
        return
    home, source = machine.registry.device_of(args[0]), args[1]
    other = machine.registry.device_of(source) if isinstance(source, torch.Tensor) else source.device
    if home != other:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{home}" to a storage on different device "{other}".'
            "  This is no longer allowed; the devices must match."
        )
