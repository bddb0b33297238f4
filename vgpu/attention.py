"""Scaled dot-product attention with the kernels, and so the memory, that CUDA would choose.

The choice follows aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: a fused kernel (flash or memory-efficient)
never makes the matrix of scores, the math fallback does.
With dropout the fallback is used here, which CUDA would not do. Not here: the kernels' cost.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import math
from typing import Any

import torch

from vgpu.gpu import VirtualGPU

_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_LARGEST_HEAD = 256


def fused_allowed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether CUDA would pick a fused kernel: switched on, four dimensions, a head size it supports."""
    cuda = torch.backends.cuda
    if not (cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled()):
        return False
    if query.dim() != 4 or query.shape[-1] != value.shape[-1] or query.shape[-1] > _LARGEST_HEAD:
        return False
    if not cuda.mem_efficient_sdp_enabled() and query.dtype == torch.float32:
        return False
    return query.dtype in (torch.float32, torch.float16, torch.bfloat16) and min(query.shape) > 0 < key.shape[-2]


def attention(
    gpu: VirtualGPU,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` on resident tensors."""
    if attn_mask is not None and is_causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    if enable_gqa and key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        blocked = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = blocked.masked_fill_(attn_mask.logical_not(), -math.inf)
    mask_learns = attn_mask is not None and attn_mask.requires_grad
    if not fused_allowed(query, key, value) or mask_learns or dropout_p > 0.0:
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    result: Any = _fused(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return result  # type: ignore[no-any-return]


def _math(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """The fallback that makes the scores (`_scaled_dot_product_attention_math`): q and k scaled by the root each."""
    root = math.sqrt(scale if scale is not None else 1.0 / math.sqrt(query.shape[-1]))
    scores = (query * root) @ (key.transpose(-2, -1) * root)
    if causal:
        allowed = torch.ones_like(scores[(0,) * (scores.dim() - 2)], dtype=torch.bool).tril()
        scores = scores + torch.zeros_like(allowed, dtype=query.dtype).masked_fill_(allowed.logical_not(), -math.inf)
    elif mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, -1)
    if dropout > 0.0:
        weights = torch.native_dropout(weights, dropout, True)[0]
    return weights @ value
