"""How many bytes a kernel moves, and the share of the memory's rate at which its accesses let it.

A byte that a kernel reads twice counts twice. Sources: the CUDA kernels in aten/src/ATen/native/cuda, named at each
rule. Not here: arithmetic (`vgpu.operations.charges`) and seconds (`vgpu.cost`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# They read as many elements of their first tensor as they write, not all of it.
_GATHERS = {"embedding", "index_select", "gather", "index", "slice", "take", "_embedding_bag"}
# They do not read what they overwrite (Copy.cu, FillKernel.cu, DistributionTemplates.h).
OVERWRITES = {
    "copy_", "_foreach_copy_", "fill", "zero", "_foreach_zero", "_foreach_fill", "normal", "uniform", "bernoulli",
    "random", "exponential", "log_normal", "cauchy", "geometric",
}  # fmt: skip
# Copies: TensorIterator's rules hold as for pointwise operations, which carry a tag.
COPIES = {"copy_", "_to_copy", "clone", "_copy_from"}

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

_Tensors = Sequence[torch.Tensor]


def bytes_of(base: str, inputs: _Tensors, outputs: _Tensors) -> int:
    """Bytes read and written, each tensor once."""
    moved = 0
    try:
        for tensor in outputs:
            moved += tensor.nbytes
        if base in _GATHERS and inputs:
            moved *= 2
            inputs = inputs[1:]
        elif base in OVERWRITES:
            inputs = [tensor for tensor in inputs if all(tensor is not written for written in outputs)]
        for tensor in inputs:
            moved += tensor.nbytes
    except RuntimeError:  # a sparse tensor, on the host
        return _bytes_of_sparse([*inputs, *outputs])
    return moved


def _bytes_of_sparse(tensors: _Tensors) -> int:
    """With sparse tensors among them: their indices and values."""
    moved = 0
    for tensor in tensors:
        if tensor.layout is torch.strided:
            moved += tensor.nbytes
        else:
            moved += tensor._nnz() * (tensor.element_size() + 8 * tensor.dim())
    return moved


def pointwise_share(inputs: _Tensors, outputs: _Tensors) -> float:
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

_Rule = Callable[[Sequence[Any], _Tensors], tuple[int, float]]


def _batch_norm(training_at: int | None) -> _Rule:
    """Training: once for mean and variance, once to normalise, and the result (Normalization.cuh)."""

    def rule(args: Sequence[Any], inputs: _Tensors) -> tuple[int, float]:
        if training_at is None or args[training_at]:
            return 3 * inputs[0].nbytes, SHARES["norm"]
        return 2 * inputs[0].nbytes, 1.0

    return rule


def _passes(count: int) -> _Rule:
    return lambda args, inputs: (count * inputs[0].nbytes, SHARES["norm"])


# What they move, and their share of the memory's rate.
_RULES: dict[str, _Rule] = {
    "native_batch_norm": _batch_norm(5),
    "cudnn_batch_norm": _batch_norm(5),
    "_batch_norm_with_update": _batch_norm(None),
    # Normalization.cuh: `batch_norm_backward_reduce` reads gradient and input, `batch_norm_backward_elemt` again.
    "native_batch_norm_backward": _passes(5),
    "cudnn_batch_norm_backward": _passes(5),
    "batch_norm_backward": _passes(5),
    # group_norm_kernel.cu: moments, then an elementwise kernel; backward sums over both, then the gradient.
    "native_group_norm": _passes(3),
    "native_group_norm_backward": _passes(5),
    # layer_norm_kernel.cu: a row stays in registers; backward has a second kernel for weight and bias.
    "native_layer_norm": _passes(2),
    "native_layer_norm_backward": _passes(5),
    "_fused_rms_norm": _passes(2),
    "_fused_rms_norm_backward": _passes(5),
}
_KINDS = {
    "_softmax": "softmax", "_softmax_backward_data": "softmax", "_log_softmax": "softmax",
    "_log_softmax_backward_data": "softmax", "_safe_softmax": "softmax", "native_dropout": "dropout",
}  # fmt: skip


def has_own_rule(base: str) -> bool:
    """Whether `of_kernel` knows more about an operation than its tensors tell."""
    return base in _RULES or base in _KINDS


def of_kernel(base: str, args: Sequence[Any], inputs: _Tensors, outputs: _Tensors) -> tuple[int, float]:
    """Bytes that the operation's kernels move, and the share of the memory's rate that they reach."""
    rule = _RULES.get(base)
    if rule is not None:
        return rule(args, inputs)
    return bytes_of(base, inputs, outputs), SHARES[_KINDS[base]]


def of_pointwise(base: str, inputs: _Tensors, outputs: _Tensors) -> tuple[int, float]:
    """The same for an elementwise operation or a copy."""
    moved = bytes_of(base, inputs, outputs)
    return moved, pointwise_share(inputs, outputs) if moved > _SMALL_BYTES else 1.0
