"""Norms as CUDA computes them: RMSNorm in one kernel, layer and batch norm with statistics in FP32.

The CPU keeps the statistics of 16-bit inputs in 16 bits when the weight is 16-bit too, CUDA in FP32 (acc_type in
layer_norm_kernel.cu and Normalization.cuh). Not here: other kernels that only CUDA has
(`vgpu.torch_integration.kernels.cuda_kernels`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

_Tensor = torch.Tensor
_aten = torch.ops.aten
_LOW = (torch.float16, torch.bfloat16)


def _named(names: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, None where the caller gave none."""
    listed = names.split()
    return dict.fromkeys(listed) | dict(zip(listed, args, strict=False)) | dict(kwargs)


def _empty(gpu: VirtualGPU, shape: Sequence[int], dtype: torch.dtype) -> _Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="cpu" if gpu.values else "meta")


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, _Tensor) and value.dtype in _LOW else value


def _like(result: _Tensor | None, model: _Tensor | None) -> _Tensor | None:
    """A result in the dtype of what it belongs to."""
    return result if result is None or model is None else result.to(model.dtype)


def _rms_norm(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """layer_norm_kernel.cu, `_fused_rms_norm_cuda`: (result, 1 / root of the mean square in FP32)."""
    arguments = _named("input normalized_shape weight eps", args, kwargs)
    tensor, weight, edges = arguments["input"], arguments["weight"], arguments["normalized_shape"]
    kept = (*tensor.shape[: tensor.dim() - len(edges)], *[1] * len(edges))
    wide = torch.promote_types(tensor.dtype, torch.float32)
    output = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    if not gpu.values:
        return output, _empty(gpu, kept, wide)
    eps = arguments["eps"] if arguments["eps"] is not None else torch.finfo(wide).eps
    axes = tuple(range(-len(edges), 0))
    scale = tensor.to(wide).square().mean(axes, keepdim=True).add_(eps).rsqrt_()
    result = tensor.to(wide) * scale
    return output.copy_(result if weight is None else result * weight), scale


def _rms_norm_backward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    arguments = _named("grad_out input normalized_shape rstd weight output_mask", args, kwargs)
    tensor, weight, mask = arguments["input"], arguments["weight"], arguments["output_mask"]
    d_input = torch.empty_like(tensor, memory_format=torch.contiguous_format) if mask[0] else None
    d_weight = torch.empty_like(weight) if mask[1] and weight is not None else None
    if gpu.values:
        axes = tuple(range(-len(arguments["normalized_shape"]), 0))
        scale = arguments["rstd"]
        gradient, normal = arguments["grad_out"].to(scale.dtype), tensor.to(scale.dtype) * scale
        if d_weight is not None:
            d_weight.copy_((gradient * normal).sum_to_size(weight.shape))
        if d_input is not None:
            weighted = gradient if weight is None else gradient * weight
            d_input.copy_(scale * (weighted - normal * (weighted * normal).mean(axes, keepdim=True)))
    return d_input, d_weight


def _layer_norm(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    arguments = _named("input normalized_shape weight bias eps", args, kwargs)
    tensor, edges = arguments["input"], arguments["normalized_shape"]
    if not gpu.values:
        kept = (*tensor.shape[: tensor.dim() - len(edges)], *[1] * len(edges))
        wide = torch.promote_types(tensor.dtype, torch.float32)
        output = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return output, _empty(gpu, kept, wide), _empty(gpu, kept, wide)
    result = _aten.native_layer_norm.default(*[_wide(arguments[name]) for name in arguments])
    return result[0].to(tensor.dtype), result[1], result[2]


def _layer_norm_backward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    arguments = _named("grad_out input normalized_shape mean rstd weight bias output_mask", args, kwargs)
    models = arguments["input"], arguments["weight"], arguments["bias"]
    if not gpu.values:
        return _gradients(models, arguments["output_mask"])
    results = _aten.native_layer_norm_backward.default(*[_wide(value) for value in arguments.values()])
    return tuple(_like(result, model) for result, model in zip(results, models, strict=True))


def _gradients(models: Sequence[_Tensor | None], mask: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(
        torch.empty_like(model, memory_format=torch.contiguous_format) if needed and model is not None else None
        for model, needed in zip(models, mask, strict=True)
    )


_BATCH_NORM = "input weight bias running_mean running_var training momentum eps"
_RUNNING = ("running_mean", "running_var")


def _batch_norm(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    return _normalised(gpu, _named(_BATCH_NORM, args, kwargs))


def _batch_norm_legit(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """With running statistics, or without any."""
    names = _BATCH_NORM
    if not any(isinstance(value, _Tensor) for value in args[3:5]) and "running_mean" not in kwargs:
        names = names.replace("running_mean running_var ", "")
    return _normalised(gpu, dict.fromkeys(_RUNNING) | _named(names, args, kwargs))


def _batch_norm_with_update(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    arguments = _named(_BATCH_NORM.replace("training ", ""), args, kwargs) | {"training": True}
    return *_normalised(gpu, arguments), _empty(gpu, (0,), torch.uint8)


def _batch_norm_evaluated(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    arguments = _named(_BATCH_NORM.replace("training ", ""), args, kwargs) | {"training": False}
    return _normalised(gpu, arguments)


def _normalised(gpu: VirtualGPU, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """Computed in FP32, or in FP64 for FP64 data; weights and running statistics may have other dtypes."""
    tensor, training = arguments["input"], arguments["training"]
    wide = torch.promote_types(tensor.dtype, torch.float32)
    output = torch.empty_like(tensor)
    if not gpu.values:
        kept = (tensor.shape[1],)
        return output, _empty(gpu, kept, wide), _empty(gpu, kept, wide)

    def widened(value: Any) -> Any:
        return value.to(wide) if isinstance(value, _Tensor) and value.dtype != wide else value

    given = {name: widened(arguments[name]) for name in _BATCH_NORM.split()}
    result, *saved = _aten.native_batch_norm.default(*given.values())
    for name in _RUNNING:
        if training and arguments[name] is not None and arguments[name] is not given[name]:
            arguments[name].copy_(given[name])
    if not training:
        saved = [_empty(gpu, (tensor.shape[1],), wide), _empty(gpu, (tensor.shape[1],), wide)]
    if result.dtype == tensor.dtype and result.stride() == output.stride():
        return result, *saved
    return output.copy_(result), *saved


def _batch_norm_backward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    names = "grad_out input weight running_mean running_var save_mean save_invstd train eps output_mask"
    arguments = _named(names, args, kwargs)
    tensor, weight, mask = arguments["input"], arguments["weight"], arguments["output_mask"]
    if not gpu.values:
        channels = _empty(gpu, (tensor.shape[1],), weight.dtype if weight is not None else tensor.dtype)
        grads = _gradients((tensor, channels, channels), mask)
        return (torch.empty_like(tensor) if mask[0] else None, *grads[1:])
    wide = torch.promote_types(tensor.dtype, torch.float32)
    given = [value.to(wide) if isinstance(value, _Tensor) else value for value in arguments.values()]
    results = _aten.native_batch_norm_backward.default(*given)
    return tuple(_like(result, model) for result, model in zip(results, (tensor, weight, weight), strict=True))


KERNELS: dict[str, Callable[[VirtualGPU, Sequence[Any], Mapping[str, Any]], Any]] = {
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm_legit,
    "_native_batch_norm_legit_no_training": _batch_norm_evaluated,
    "_batch_norm_with_update": _batch_norm_with_update,
    "native_batch_norm_backward": _batch_norm_backward,
}
