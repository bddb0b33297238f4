"""Layers with other kernels on a GPU than on the CPU: mixed softmax, RMSNorm, the transformer's fast path.

Handlers for the function mode. Sources: aten/src/ATen/native/SoftMax.cpp, layer_norm.cpp (`rms_norm_symint`),
transformers/transformer.cpp and transformers/cuda/attention.cu. Not here: the kernels
(`vgpu.torch_integration.kernels.cuda_kernels`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from vgpu.runtime.gpu import VirtualGPU
from vgpu.torch_integration import autocast
from vgpu.torch_integration.handling_mode import HandlingMode
from vgpu.torch_integration.kernels import attention, sdp_backends
from vgpu.torch_integration.kernels.sdp_checks import Problem

_Tensor = torch.Tensor


def softmax(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`softmax(half, dtype=float32)` converts inside its kernel on CUDA (SoftMax.cpp, half_to_float)."""
    if torch.is_autocast_enabled("cuda"):
        args, kwargs = autocast.prepare(mode.gpu, mode.weights, func.__name__, args, kwargs)
    tensor = args[0] if args else kwargs.get("input")
    dtype = kwargs.get("dtype") or next((value for value in args[2:] if isinstance(value, torch.dtype)), None)
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    if dtype != torch.float32 or not isinstance(axis, int) or not isinstance(tensor, _Tensor):
        return func(*args, **kwargs)
    if tensor.dtype != torch.float16 or not mode.has(tensor):
        return func(*args, **kwargs)
    fused = torch._log_softmax if func.__name__ == "log_softmax" else torch._softmax
    return fused(tensor, axis, True)


class _FusedRMSNorm(torch.autograd.Function):
    """`aten::_fused_rms_norm`: the CPU build takes it apart above autograd, CUDA has a kernel and a formula for it."""

    @staticmethod
    def forward(ctx: Any, tensor: _Tensor, shape: list[int], weight: _Tensor | None, eps: float | None) -> _Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            result, scale = torch.ops.aten._fused_rms_norm.default(tensor, shape, weight, eps)
        ctx.save_for_backward(tensor, scale, weight)
        ctx.shape = shape
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: _Tensor) -> Any:
        tensor, scale, weight = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[2]]
        d_tensor, d_weight = torch.ops.aten._fused_rms_norm_backward.default(
            gradients[0], tensor, ctx.shape, scale, weight, mask
        )
        return d_tensor, None, d_weight, None


def rms_norm(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One kernel, unless weight and input differ in dtype."""
    args, kwargs = autocast.prepare(mode.gpu, mode.weights, "rms_norm", args, kwargs)
    arguments = dict(zip(("input", "normalized_shape", "weight", "eps"), args, strict=False)) | kwargs
    tensor, weight = arguments["input"], arguments.get("weight")
    shape = list(arguments["normalized_shape"])
    if not mode.has(tensor) or (weight is not None and weight.dtype != tensor.dtype):
        return func(*args, **kwargs)
    if not shape or list(tensor.shape[-len(shape) :]) != shape or (weight is not None and list(weight.shape) != shape):
        return func(*args, **kwargs)  # PyTorch's own check refuses it
    return _FusedRMSNorm.apply(tensor, shape, weight, arguments.get("eps"))


# ---- the fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer in inference ------------------------------

_ATTENTION = (
    "query", "key", "value", "embed_dim", "num_head", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "mask",
    "need_weights", "average_attn_weights", "mask_type",
)  # fmt: skip
_LAYER = (
    "src", "embed_dim", "num_heads", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "use_gelu", "norm_first",
    "eps", "norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2", "ffn_weight_1", "ffn_bias_1",
    "ffn_weight_2", "ffn_bias_2", "mask", "mask_type",
)  # fmt: skip


def multi_head_attention(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch._native_multi_head_attention`: one projection, fused attention or bmm and softmax, one projection."""
    arguments: dict[str, Any] = {"need_weights": True, "average_attn_weights": True, "mask": None, "mask_type": None}
    arguments |= dict(zip(_ATTENTION, args, strict=False)) | kwargs
    gpu = mode.registry.gpu_of(arguments["query"])
    if gpu is None:
        return func(*args, **kwargs)
    return _attention(gpu, arguments)


def _attention(gpu: VirtualGPU, arguments: dict[str, Any]) -> tuple[_Tensor, _Tensor | None]:
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    heads, width, mask = arguments["num_head"], arguments["embed_dim"] // arguments["num_head"], arguments["mask"]
    qkv_weight, qkv_bias = arguments["qkv_weight"], arguments["qkv_bias"]

    def split(tensor: _Tensor) -> _Tensor:
        return tensor.view(tensor.shape[0], -1, heads, width).transpose(1, 2)

    same = query is key and key is value
    if same and width % 8 == 0 and not arguments["need_weights"] and mask is None:
        sample = split(query)
        problem = Problem(sample, sample, sample, None, 0.0, False, False)
        if sdp_backends.choose(gpu, problem) != sdp_backends.MATH:
            packed = functional.linear(query, qkv_weight, qkv_bias)
            q, k, v = (split(part) for part in packed.chunk(3, -1))
            mixed = (
                attention.attention(gpu, q, k, v).transpose(1, 2).reshape(query.shape[0], -1, arguments["embed_dim"])
            )
            return functional.linear(mixed, arguments["proj_weight"], arguments["proj_bias"]), None
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        split(functional.linear(tensor, weight, bias))
        for tensor, weight, bias in zip((query, key, value), weights, biases, strict=True)
    )
    scores = (q * (1.0 / math.sqrt(width))) @ k.transpose(-2, -1)
    if mask is not None:
        shape = {0: (1, 1, *mask.shape[-2:]), 1: (mask.shape[0], 1, 1, mask.shape[-1])}.get(
            arguments["mask_type"], tuple(mask.shape)
        )
        scores = scores.masked_fill(mask.to(torch.bool).view(shape), -math.inf)
    shares = torch.softmax(scores, -1)
    del scores
    mixed = (shares @ v).transpose(1, 2).reshape(query.shape[0], -1, arguments["embed_dim"])
    result = functional.linear(mixed, arguments["proj_weight"], arguments["proj_bias"])
    if not arguments["need_weights"]:
        return result, None
    return result, shares.mean(1) if arguments["average_attn_weights"] else shares


def left_aligned(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Whether `nn.TransformerEncoder` may pack its padded input into a nested tensor: not here.

    It then computes with the mask. Rows that are padding get values, where CUDA's nested tensors give zeros.
    """
    return False if mode.has(args[0]) else func(*args, **kwargs)


def encoder_layer(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch._transformer_encoder_layer_fwd` (transformer.cpp, `transformer_encoder_layer_forward`)."""
    arguments: dict[str, Any] = {"mask": None, "mask_type": None} | dict(zip(_LAYER, args, strict=False)) | kwargs
    source = arguments["src"]
    gpu = mode.registry.gpu_of(source)
    if gpu is None:
        return func(*args, **kwargs)

    def norm(tensor: _Tensor, number: int) -> _Tensor:
        weight, bias = arguments[f"norm_weight_{number}"], arguments[f"norm_bias_{number}"]
        return functional.layer_norm(tensor, (arguments["embed_dim"],), weight, bias, arguments["eps"])

    first = arguments["norm_first"]
    x = norm(source, 1) if first else source
    x = _attention(
        gpu,
        {**arguments, "query": x, "key": x, "value": x, "num_head": arguments["num_heads"], "need_weights": False},
    )[0]
    x.add_(source)
    if not first:
        x = norm(x, 1)
    before = x
    if first:
        x = norm(x, 2)
    flat = x.reshape(-1, x.shape[-1])
    hidden = torch._addmm_activation(
        arguments["ffn_bias_1"], flat, arguments["ffn_weight_1"].t(), beta=1, alpha=1, use_gelu=arguments["use_gelu"]
    )
    x = functional.linear(hidden.view(*x.shape[:-1], -1), arguments["ffn_weight_2"], arguments["ffn_bias_2"])
    del hidden
    x.add_(before)
    return x if first else norm(x, 2)
