"""The five operations of `nn.SyncBatchNorm` that only CUDA has, by the formulas of its kernels.

Source: aten/src/ATen/native/cuda/Normalization.cuh; statistics are in FP32 for 16-bit inputs. Not here: the exchange
between the ranks, which is PyTorch's own Python code (torch/nn/modules/_functions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

_T = torch.Tensor


def _wide(tensor: _T) -> _T:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _but_channels(tensor: _T) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _along_channels(values: _T, tensor: _T) -> _T:
    """One value per channel, shaped to go with `tensor`."""
    return values.view([-1 if dim == 1 else 1 for dim in range(tensor.dim())])


def _stats(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[_T, _T]:
    tensor, eps = args
    variance, mean = torch.var_mean(_wide(tensor), dim=_but_channels(tensor), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gather_stats(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[_T, _T]:
    """Mean and deviation of all ranks together (Welford), and with them the running statistics."""
    _, means, inverses, running_mean, running_var, momentum, eps, counts = args
    weights = _wide(counts).view(-1, 1)
    total = weights.sum()
    mean = (means * weights).sum(0) / total
    squares = ((inverses**-2 - eps + (means - mean) ** 2) * weights).sum(0)
    for running, value in ((running_mean, mean), (running_var, squares / (total - 1))):
        if running is not None:
            running.mul_(1 - momentum).add_(value * momentum)
    return mean, torch.rsqrt(squares / total + eps)


def _normalise(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _T:
    tensor, weight, bias, mean, inverse, _ = args
    result = (_wide(tensor) - _along_channels(mean, tensor)) * _along_channels(inverse, tensor)
    if weight is not None:
        result = result * _along_channels(weight, tensor)
    if bias is not None:
        result = result + _along_channels(bias, tensor)
    return result.to(tensor.dtype)


def _backward_sums(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[_T | None, ...]:
    gradient, tensor, mean, inverse, weight, for_input, for_weight, for_bias = args
    wide = _wide(gradient)
    sums = wide.sum(_but_channels(tensor))
    products = (wide * (_wide(tensor) - _along_channels(mean, tensor))).sum(_but_channels(tensor))
    dtype = weight.dtype if weight is not None else sums.dtype
    nothing = torch.empty(0, dtype=dtype, device=sums.device)
    return (
        sums if for_input else nothing,
        products if for_input else nothing,
        (products * inverse).to(dtype) if for_weight else nothing,
        sums.to(dtype) if for_bias else nothing,
    )


def _backward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _T:
    gradient, tensor, mean, inverse, weight, sums, products, counts = args
    share = 1.0 / counts.sum()
    centred = _wide(tensor) - _along_channels(mean, tensor)
    slope = _along_channels(products * share * inverse**2, tensor)
    factor = inverse if weight is None else inverse * weight
    result = _wide(gradient) - _along_channels(sums * share, tensor) - centred * slope
    return (result * _along_channels(factor, tensor)).to(gradient.dtype)


KERNELS: dict[str, Callable[[VirtualGPU, Sequence[Any], Mapping[str, Any]], Any]] = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats_with_counts": _gather_stats,
    "batch_norm_elemt": _normalise,
    "batch_norm_backward_reduce": _backward_sums,
    "batch_norm_backward_elemt": _backward,
}
