"""Which copies within a GPU are plain ones, for which CUDA starts no kernel.

aten/src/ATen/native/cuda/Copy.cu, `copy_device_to_device`: cudaMemcpyAsync for the same dtype and dense, equal layouts.
Not here: copies between devices (`vgpu.runtime.gpu.VirtualGPU.transfer`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
