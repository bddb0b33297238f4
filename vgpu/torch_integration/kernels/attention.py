"""`scaled_dot_product_attention` on a GPU: checks its inputs, prepares them as CUDA does, calls the chosen kernel.

The steps of aten/src/ATen/native/transformers/attention.cpp. Not here: the choice
(`vgpu.torch_integration.kernels.sdp_backends`), the fused kernels (`vgpu.torch_integration.kernels.cuda_kernels`), the
kernels' cost.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import math
from typing import Any

import torch

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.versions import torch_version
from vgpu.torch_integration.kernels import sdp_backends
from vgpu.torch_integration.kernels.sdp_backends import CUDNN, EFFICIENT, FLASH
from vgpu.torch_integration.kernels.sdp_checks import Problem

_Tensor = torch.Tensor
_aten = torch.ops.aten
# Flash attention pads heads, the memory-efficient kernel rows of the mask, to multiples of these.
_FLASH_ALIGNMENT, _MASK_ALIGNMENT = 8, 16
# From this version on the fused kernels take heads without a batch (seen in its CUDA host code).
_SINGLE_SINCE = (2, 15)


def attention(
    gpu: VirtualGPU,
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    attn_mask: _Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` on resident tensors."""
    _validate(gpu, query, key, value, attn_mask, dropout_p)
    problem = Problem(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if torch_version() >= _SINGLE_SINCE and query.dim() == key.dim() == value.dim() == 3:
        q, k, v = (tensor.unsqueeze(0) for tensor in (query, key, value))
        wide = attn_mask.unsqueeze(0) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
        problem = Problem(q, k, v, wide, dropout_p, is_causal, enable_gqa)
        if sdp_backends.choose(gpu, problem) != sdp_backends.MATH:
            return attention(gpu, q, k, v, wide, dropout_p, is_causal, scale, enable_gqa).squeeze(0)
    backend = sdp_backends.choose(gpu, problem)
    mask = _additive(attn_mask, query.dtype)
    if mask is not None and is_causal:
        if backend not in (EFFICIENT, CUDNN):
            raise RuntimeError(
                "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
            )
        # These kernels take both (seen on an H100); the CPU's, which compute the values here, take one.
        visible = query.new_ones((query.shape[-2], key.shape[-2]), dtype=torch.bool).tril()
        mask, is_causal = mask.masked_fill(~visible, -math.inf), False
    keeps = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    result: _Tensor
    if backend == FLASH:
        width = query.shape[-1]
        padded = [_padded(tensor, _FLASH_ALIGNMENT) for tensor in (query, key, value)]
        factor = scale if scale is not None else 1.0 / math.sqrt(width)
        result = _aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=factor)[0]
        return result if result.shape[-1] == width else result[..., :width]
    if backend == EFFICIENT:
        if mask is not None and mask.dtype != query.dtype:
            raise RuntimeError("invalid dtype for bias - should match query's dtype")
        bias = None if mask is None else _aligned_mask(mask, query, key)
        result = _aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, keeps, dropout_p, is_causal, scale=scale
        )[0]
        return result
    if backend == CUDNN:
        result = _aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, keeps, dropout_p, is_causal, False, scale=scale
        )[0]
        return result
    return _math(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)


def _validate(
    gpu: VirtualGPU, query: _Tensor, key: _Tensor, value: _Tensor, mask: _Tensor | None, dropout: float
) -> None:
    """`validate_sdpa_input`."""
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{_type_name(query)} key.dtype: {_type_name(key)} and value.dtype: {_type_name(value)} instead."
        )
    devices_of = [gpu.registry.device_of(tensor) for tensor in (query, key, value)]
    if len(set(devices_of)) > 1:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{devices_of[0]} key.device: {devices_of[1]} and value.device: {devices_of[2]} instead."
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
            f"{query.dim()} key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{_type_name(mask)} and  query.dtype: {_type_name(query)} instead."
        )
    if not 0.0 <= dropout <= 1.0:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {dropout}")


def _type_name(tensor: _Tensor) -> str:
    names = {torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bool: "bool"}
    return names.get(tensor.dtype, "c10::BFloat16" if tensor.dtype == torch.bfloat16 else str(tensor.dtype))


def _additive(mask: _Tensor | None, dtype: torch.dtype) -> _Tensor | None:
    """`convert_boolean_attn_mask`: 0 where a pair takes part, minus infinity where not."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, mask.new_full((), 0.0, dtype=dtype), mask.new_full((), -math.inf, dtype=dtype))


def _padded(tensor: _Tensor, alignment: int) -> _Tensor:
    missing = -tensor.shape[-1] % alignment
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _aligned_mask(mask: _Tensor, query: _Tensor, key: _Tensor) -> _Tensor:
    """`preprocess_mask`: every pair of heads and rows, rows that begin at a multiple of 16 elements."""
    mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    columns = mask.shape[-1]
    if columns % _MASK_ALIGNMENT:
        return _padded(mask, _MASK_ALIGNMENT)[..., :columns]
    if any(stride % _MASK_ALIGNMENT for stride in mask.stride()[:3]):
        return mask.contiguous()
    return mask


def _math(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    mask: _Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> _Tensor:
    """The fallback that makes the scores (`_scaled_dot_product_attention_math`): q and k scaled by the root each.

    16-bit operands are taken to FP32 unless `allow_fp16_bf16_reduction_math_sdp`.
    """
    dtype = query.dtype
    low = dtype in (torch.float16, torch.bfloat16)
    if low and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
        mask = None if mask is None else mask.float()
    negative = scale is not None and scale < 0.0
    root = math.sqrt(abs(scale) if scale is not None else 1.0 / math.sqrt(query.shape[-1]))
    query = query * (-root if negative else root)
    if causal:
        shape = query.shape[-2], key.shape[-2]
        mask = _additive(query.new_ones(shape, dtype=torch.bool).tril(), query.dtype)
    if grouped and query.dim() >= 3:
        key, value = (_repeated(tensor, query.shape[-3]) for tensor in (key, value))
    scores = query @ (key.transpose(-2, -1) * root)
    if mask is not None:
        scores.add_(mask)
    weights: Any = torch._safe_softmax(scores, -1)
    del scores
    if dropout > 0.0:
        weights = torch.native_dropout(weights, dropout, True)[0]
    narrow = weights.to(dtype)
    result: _Tensor = (weights @ value).to(dtype)
    del narrow
    return result


def _repeated(tensor: _Tensor, heads: int) -> _Tensor:
    """`pre_process_group_query_attention_input`: one key and value head per query head."""
    if tensor.shape[-3] == heads:
        return tensor
    if heads % tensor.shape[-3]:
        raise RuntimeError("Number of heads in key and value must divide the number of heads in query")
    return tensor.repeat_interleave(heads // tensor.shape[-3], -3)
