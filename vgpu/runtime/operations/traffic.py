"""How many bytes a kernel moves, and the share of the memory's rate at which its accesses let it.

A byte that a kernel reads twice counts twice. Sources: the CUDA kernels in aten/src/ATen/native/cuda, named at each
rule. Not here: products (`vgpu.runtime.operations.products`) and seconds (`vgpu.device.cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vgpu.runtime.operations.operation import Operation, Tensors, TrafficRule

# Below this the shortest kernel, not the memory, decides: layouts are not looked at.
_SMALL_BYTES = 1 << 20
# Vectorised kernels move 16 bytes with each load; where operands are broadcast or laid out differently, each load moves
# one element (CUDALoops.cuh, `launch_legacy_kernel`), and where both dense sides differ, a sector of 32 bytes serves
# few threads of a warp. Bytes per element at which half of the rate remains, fitted to benchmarks/published.
_SCATTERED_BYTES = 2.0
_TRANSPOSED_BYTES = 4.0
# Share of the memory's rate of kernels that reduce rows and go over them again, or draw random numbers; fitted to
# benchmarks/published.
SHARES = {"softmax": 0.7, "norm": 0.8, "dropout": 0.75}


def bytes_of(operation: Operation, inputs: Tensors, outputs: Tensors) -> int:
    """Bytes read and written, each tensor once."""
    moved = 0
    try:
        for tensor in outputs:
            moved += tensor.nbytes
        if operation.gathers and inputs:
            moved *= 2
            inputs = inputs[1:]
        elif operation.overwrites:
            inputs = [tensor for tensor in inputs if all(tensor is not written for written in outputs)]
        for tensor in inputs:
            moved += tensor.nbytes
    except RuntimeError:  # a sparse tensor, on the host
        return _bytes_of_sparse([*inputs, *outputs])
    return moved


def _bytes_of_sparse(tensors: Tensors) -> int:
    """With sparse tensors among them: their indices and values."""
    moved = 0
    for tensor in tensors:
        if tensor.layout is torch.strided:
            moved += tensor.nbytes
        else:
            moved += tensor._nnz() * (tensor.element_size() + 8 * tensor.dim())
    return moved


def pointwise_share(inputs: Tensors, outputs: Tensors) -> float:
    """Share of the memory's rate that an elementwise kernel reaches with operands in these layouts."""
    if not outputs or not inputs:
        return 1.0
    result = outputs[0]
    strides, elements = result.stride(), result.numel()
    share = 1.0
    for tensor in inputs:
        if tensor.dim() == 0 or tensor is result or tensor.numel() == 1:
            continue
        if tensor.numel() == elements and tensor.stride() == strides:
            continue
        scattered = tensor.numel() == elements and _dense_axis(tensor) != _dense_axis(result)
        width = result.element_size()
        share = min(share, width / (width + (_TRANSPOSED_BYTES if scattered else _SCATTERED_BYTES)))
    return share


def _dense_axis(tensor: torch.Tensor) -> int:
    """The axis along which neighbours lie side by side, counted from the last; size 1 does not count."""
    for axis in range(1, tensor.dim() + 1):
        if tensor.stride(-axis) == 1 and tensor.size(-axis) > 1:
            return axis
    return 0


# ---- kernels that go over their operands more than once --------------------------------------------------------------


def batch_norm(training_at: int | None) -> TrafficRule:
    """Training: once for mean and variance, once to normalise, and the result (Normalization.cuh)."""

    def rule(args: Sequence[Any], inputs: Tensors) -> tuple[int, float]:
        if training_at is None or args[training_at]:
            return 3 * inputs[0].nbytes, SHARES["norm"]
        return 2 * inputs[0].nbytes, 1.0

    return rule


def sort(args: Sequence[Any], inputs: Tensors) -> tuple[int, float]:
    """Radix sort of keys with their 64-bit places: each pass over 8 bits of the key reads and writes both, and one more
    counts (CUB, `DeviceRadixSort`). The share of the memory's rate is that of a million floats on an H100.
    """
    keys = inputs[0]
    return (2 * keys.element_size() * (keys.element_size() + 8) + keys.element_size()) * keys.numel(), 0.33


def topk(args: Sequence[Any], inputs: Tensors) -> tuple[int, float]:
    """Radix selection reads all again and again until the k-th is known, then gathers (TensorTopK.cu): on an H100 as
    long as nine and a half readings."""
    return round(9.5 * inputs[0].nbytes), 1.0


def passes(count: int) -> TrafficRule:
    """So many times over the first input, or as much as that."""
    return lambda args, inputs: (count * inputs[0].nbytes, SHARES["norm"])


def of_kernel(operation: Operation, args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> tuple[int, float]:
    """Bytes that the operation's kernels move, and the share of the memory's rate that they reach."""
    if operation.traffic is not None:
        return operation.traffic(args, inputs)
    return bytes_of(operation, inputs, outputs), SHARES[operation.share]


def of_pointwise(operation: Operation, inputs: Tensors, outputs: Tensors) -> tuple[int, float]:
    """The same for an elementwise operation or a copy."""
    moved = bytes_of(operation, inputs, outputs)
    if len(inputs) == 2 and inputs[0] is inputs[1] and inputs[0].layout is torch.strided:
        moved -= inputs[1].nbytes  # `x * x` loads x once (an H100 takes as long for it as for `x + 1`)
    return moved, pointwise_share(inputs, outputs) if moved > _SMALL_BYTES else 1.0
