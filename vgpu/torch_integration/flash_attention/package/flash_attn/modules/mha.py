"""Modules of attention: flash attention's own, plain ones of PyTorch's operations, and multi-head attention with both.

Shapes: qkv (batch, places, 3, heads, width), q (batch, places, heads, width), kv (batch, places, 2, heads of keys,
width); with `cu_seqlens` the batch is packed, and batch and places are one axis. Source of names, arguments and
results: flash_attn/modules/mha.py of flash-attn 2.8. Its `ParallelMHA` is not simulated.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .. import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from ..layers.rotary import RotaryEmbedding

_Tensor = torch.Tensor
_LOW = (torch.float16, torch.bfloat16)
_HIDDEN = -10000.0


def get_alibi_slopes(nheads: int) -> list[float]:
    """ALiBi's slopes for each head (O. Press et al. 2021, "Train Short, Test Long")."""
    whole = 2 ** math.floor(math.log2(nheads))
    start = 2 ** (-(2 ** -(math.log2(whole) - 3)))
    slopes = [start ** (number + 1) for number in range(whole)]
    if whole == nheads:
        return slopes
    return slopes + get_alibi_slopes(2 * whole)[0::2][: nheads - whole]


class _Flash(nn.Module):
    """What the two modules of flash attention are made with."""

    alibi_slopes: _Tensor | None

    def __init__(
        self, causal: bool = False, softmax_scale: float | None = None, attention_dropout: float = 0.0,
        window_size: tuple[int, int] = (-1, -1), alibi_slopes: _Tensor | None = None, deterministic: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.causal, self.softmax_scale = causal, softmax_scale
        self.drop = nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.window_size, self.deterministic = window_size, deterministic

    def _options(self, causal: bool | None) -> dict[str, Any]:
        if self.alibi_slopes is not None:
            self.alibi_slopes = self.alibi_slopes.to(torch.float32)
        return {
            "dropout_p": self.drop.p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            "alibi_slopes": self.alibi_slopes,
            "window_size": self.window_size,
            "deterministic": self.deterministic,
        }


class FlashSelfAttention(_Flash):
    """Flash attention of qkv."""

    def forward(
        self, qkv: _Tensor, causal: bool | None = None, cu_seqlens: _Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Any:  # fmt: skip
        """Returns (batch, places, heads, width), or (tokens, heads, width)."""
        assert qkv.dtype in _LOW
        assert qkv.is_cuda
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **options)
        assert cu_seqlens.dtype == torch.int32
        assert isinstance(max_seqlen, int)
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **options)


class FlashCrossAttention(_Flash):
    """Flash attention of q and kv."""

    def __init__(
        self, causal: bool = False, softmax_scale: float | None = None, attention_dropout: float = 0.0,
        alibi_slopes: _Tensor | None = None, window_size: tuple[int, int] = (-1, -1), deterministic: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic)

    def forward(
        self, q: _Tensor, kv: _Tensor, causal: bool | None = None, cu_seqlens: _Tensor | None = None,
        max_seqlen: int | None = None, cu_seqlens_k: _Tensor | None = None, max_seqlen_k: int | None = None,
    ) -> Any:  # fmt: skip
        """Returns (batch, queries, heads, width), or (tokens, heads, width)."""
        assert q.dtype in _LOW
        assert q.is_cuda
        assert kv.is_cuda
        options = self._options(causal)
        if cu_seqlens is None:
            assert kv.shape[0] == q.shape[0]
            assert kv.shape[4] == q.shape[3]
            return flash_attn_kvpacked_func(q, kv, **options)
        assert cu_seqlens.dtype == torch.int32
        assert isinstance(max_seqlen, int)
        assert cu_seqlens_k is not None
        assert cu_seqlens_k.dtype == torch.int32
        assert isinstance(max_seqlen_k, int)
        return flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **options)


class _Plain(nn.Module):
    """Attention by PyTorch's operations, with all scores at once."""

    def __init__(
        self, causal: bool = False, softmax_scale: float | None = None, attention_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.causal, self.softmax_scale = causal, softmax_scale
        self.drop = nn.Dropout(attention_dropout)

    def _scores(self, query: _Tensor, key: _Tensor, key_padding_mask: _Tensor | None) -> _Tensor:
        scale = self.softmax_scale or 1.0 / math.sqrt(query.shape[-1])
        scores = torch.einsum("bthd,bshd->bhts", query, key * scale)
        if key_padding_mask is None:
            return scores
        padding = torch.full(key_padding_mask.shape, _HIDDEN, dtype=scores.dtype, device=scores.device)
        return scores + padding.masked_fill_(key_padding_mask, 0.0)[:, None, None]

    def _weighted(self, scores: _Tensor, value: _Tensor) -> _Tensor:
        weights = self.drop(torch.softmax(scores, dim=-1, dtype=value.dtype))
        return torch.einsum("bhts,bshd->bthd", weights, value)


class SelfAttention(_Plain):
    """Attention of qkv."""

    def forward(self, qkv: _Tensor, causal: bool | None = None, key_padding_mask: _Tensor | None = None) -> _Tensor:
        """`key_padding_mask` (batch, places) is True for keys that count. Returns (batch, places, heads, width)."""
        query, key, value = qkv.unbind(dim=2)
        scores = self._scores(query, key, key_padding_mask)
        if self.causal if causal is None else causal:
            hidden = torch.full((qkv.shape[1], qkv.shape[1]), _HIDDEN, device=scores.device)
            scores = scores + torch.triu(hidden, 1).to(dtype=scores.dtype)
        return self._weighted(scores, value)


class CrossAttention(_Plain):
    """Attention of q and kv."""

    def forward(
        self, q: _Tensor, kv: _Tensor, causal: bool | None = None, key_padding_mask: _Tensor | None = None
    ) -> _Tensor:
        """Causal: the last query sees the last key that is no padding. Returns (batch, queries, heads, width)."""
        assert kv.shape[0] == q.shape[0]
        assert kv.shape[4] == q.shape[3]
        if kv.shape[3] != q.shape[2]:
            kv = kv.repeat_interleave(q.shape[2] // kv.shape[3], 3)
        key, value = kv.unbind(dim=2)
        scores = self._scores(q, key, key_padding_mask)
        if self.causal if causal is None else causal:
            rows = torch.arange(q.shape[1], device=q.device)[:, None]
            columns = torch.arange(kv.shape[1], device=q.device)
            keys: Any = kv.shape[1]
            if key_padding_mask is not None:
                keys = key_padding_mask.sum(-1)[:, None, None, None]
            scores = scores.masked_fill(columns > rows + keys - q.shape[1], _HIDDEN)
        return self._weighted(scores, value)


class MHA(nn.Module):
    """Multi-head self-attention or cross-attention, with a cache for generation."""

    def __init__(
        self, embed_dim: int, num_heads: int, num_heads_kv: int | None = None, cross_attn: bool = False,
        qkv_proj_bias: bool = True, out_proj_bias: bool = True, dropout: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False, layer_idx: int | None = None, dwconv: bool = False,
        rotary_emb_dim: int = 0, rotary_emb_base: float = 10000.0, rotary_emb_scale_base: float | None = None,
        rotary_emb_interleaved: bool = False, use_alibi: bool = False, window_size: tuple[int, int] = (-1, -1),
        fused_bias_fc: bool = False, use_flash_attn: bool = False, return_residual: bool = False,
        checkpointing: bool = False, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        """`num_heads_kv`: fewer heads of keys; `return_residual`: the input comes back beside the output."""
        super().__init__()
        self.embed_dim, self.cross_attn, self.causal, self.layer_idx = embed_dim, cross_attn, causal, layer_idx
        self.dwconv, self.rotary_emb_dim, self.use_flash_attn = dwconv, rotary_emb_dim, use_flash_attn
        self.return_residual, self.checkpointing = return_residual, checkpointing
        slopes = None
        if use_alibi:
            assert use_flash_attn, "ALiBi code path requires flash_attn"
            slopes = torch.tensor(get_alibi_slopes(num_heads), device=device)
        if window_size != (-1, -1):
            assert use_flash_attn, "Local (sliding window) attention code path requires flash_attn"
        self.num_heads, self.num_heads_kv = num_heads, num_heads if num_heads_kv is None else num_heads_kv
        assert self.num_heads % self.num_heads_kv == 0, "num_heads must be divisible by num_heads_kv"
        assert embed_dim % num_heads == 0, "embed_dim must be divisible by num_heads"
        self.head_dim = embed_dim // num_heads
        both = 2 * self.head_dim * self.num_heads_kv
        if rotary_emb_dim > 0:
            assert not cross_attn, "MHA with rotary embedding does not support cross-attention yet"
            self.rotary_emb = RotaryEmbedding(
                rotary_emb_dim, base=rotary_emb_base, scale_base=rotary_emb_scale_base,
                interleaved=rotary_emb_interleaved, device=device,
            )  # fmt: skip
        made = {"device": device, "dtype": dtype}
        if cross_attn:
            self.Wq = nn.Linear(embed_dim, embed_dim, bias=qkv_proj_bias, **made)
            self.Wkv = nn.Linear(embed_dim, both, bias=qkv_proj_bias, **made)
        else:
            self.Wqkv = nn.Linear(embed_dim, embed_dim + both, bias=qkv_proj_bias, **made)
        if dwconv:
            widths = {"dwconv_qkv": embed_dim + both}
            if self.num_heads_kv != num_heads:
                widths = {"dwconv_q": embed_dim, "dwconv_kv": both}
            for name, width in widths.items():
                setattr(self, name, nn.Conv1d(width, width, kernel_size=3, padding=2, groups=width))
        options: dict[str, Any] = {
            "causal": causal, "softmax_scale": softmax_scale, "attention_dropout": dropout,
        }  # fmt: skip
        own: Any = SelfAttention
        other: Any = CrossAttention
        if use_flash_attn:
            own = partial(FlashSelfAttention, alibi_slopes=slopes, window_size=window_size)
            other = partial(FlashCrossAttention, alibi_slopes=slopes, window_size=window_size)
        self.inner_attn, self.inner_cross_attn = own(**options), other(**options)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_proj_bias, **made)

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None) -> _Tensor:
        """An empty cache (batch, places, 2, heads of keys, width)."""
        weight = self.out_proj.weight
        shape = (batch_size, max_seqlen, 2, self.num_heads_kv, self.head_dim)
        return torch.empty(shape, dtype=weight.dtype if dtype is None else dtype, device=weight.device)

    def forward(
        self, x: _Tensor, x_kv: _Tensor | None = None, key_padding_mask: _Tensor | None = None,
        cu_seqlens: _Tensor | None = None, max_seqlen: int | None = None, mixer_subset: Any = None,
        inference_params: Any = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """x (batch, places, embed_dim), or (tokens, embed_dim) with `cu_seqlens`; `x_kv` is for cross-attention.

        Args:
            key_padding_mask: (batch, places), True for tokens that count; without flash attention only.
            mixer_subset: queries that are wanted; with cross-attention only.
            inference_params: of generation: `max_seqlen`, `max_batch_size`, `seqlen_offset`, `batch_size_offset`,
                `key_value_memory_dict` and `lengths_per_sample`.
        """
        if cu_seqlens is not None:
            assert max_seqlen is not None
            assert key_padding_mask is None
            assert self.use_flash_attn
            assert not self.dwconv
            assert self.rotary_emb_dim == 0
        if key_padding_mask is not None:
            assert not self.use_flash_attn
        if inference_params is not None:
            assert key_padding_mask is None
            assert cu_seqlens is None
            assert max_seqlen is None
            assert not self.dwconv
        extra = {"key_padding_mask": key_padding_mask, **kwargs}
        if self.use_flash_attn:
            extra = {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen, **kwargs}
        if not self.cross_attn and self.num_heads_kv == self.num_heads:
            assert x_kv is None
            assert mixer_subset is None
            context = self._of_qkv(self._mixed("dwconv_qkv", self.Wqkv(x)), inference_params, extra)
        else:
            if self.cross_attn:
                query = self.Wq(x if mixer_subset is None else x[:, mixer_subset])
                both = self.Wkv(x if x_kv is None else x_kv)
            else:
                together = self.Wqkv(x)
                query, both = together[..., : self.embed_dim], together[..., self.embed_dim :]
            query = self._mixed("dwconv_q", query).unflatten(-1, (-1, self.head_dim))
            both = self._mixed("dwconv_kv", both).unflatten(-1, (2, -1, self.head_dim))
            context = self._of_parts(query, both, inference_params, extra)
        output = self.out_proj(context.flatten(-2))
        return (output, x) if self.return_residual else output

    def _mixed(self, name: str, values: _Tensor) -> _Tensor:
        if not self.dwconv:
            return values
        mixed: _Tensor = getattr(self, name)(values.transpose(1, 2))[..., :-2]
        return mixed.transpose(1, 2).contiguous()

    def _rotates_first(self, inference_params: Any) -> bool:
        """Whether rotation and cache are not left to the kernel of `flash_attn_with_kvcache`."""
        first = inference_params is None or inference_params.seqlen_offset == 0
        return first or self.rotary_emb_dim == 0 or self.rotary_emb_dim % 16 != 0 or not self.use_flash_attn

    def _offsets(self, inference_params: Any) -> dict[str, Any]:
        if inference_params is None:
            return {"seqlen_offset": 0, "max_seqlen": None}
        lengths = inference_params.lengths_per_sample
        offset = inference_params.seqlen_offset if lengths is None else lengths
        return {"seqlen_offset": offset, "max_seqlen": inference_params.max_seqlen}

    def _attend(self, module: nn.Module, *operands: _Tensor, **extra: Any) -> _Tensor:
        result: _Tensor = checkpoint(module, *operands, **extra) if self.checkpointing else module(*operands, **extra)
        return result

    def _of_qkv(self, values: _Tensor, inference_params: Any, extra: dict[str, Any]) -> _Tensor:
        qkv = values.unflatten(-1, (3, -1, self.head_dim))
        if self._rotates_first(inference_params):
            if self.rotary_emb_dim > 0:
                qkv = self.rotary_emb(qkv, **self._offsets(inference_params))
            if inference_params is None:
                return self._attend(self.inner_attn, qkv, **extra)
        return self._cached(qkv[:, :, 0], qkv[:, :, 1:], inference_params)

    def _of_parts(self, query: _Tensor, both: _Tensor, inference_params: Any, extra: dict[str, Any]) -> _Tensor:
        if self._rotates_first(inference_params):
            if self.rotary_emb_dim > 0:
                query, both = self.rotary_emb(query, both, **self._offsets(inference_params))
            if inference_params is None:
                return self._attend(self.inner_cross_attn, query, both, **extra)
        return self._cached(query, both, inference_params)

    def _cached(self, query: _Tensor, both: _Tensor, params: Any) -> _Tensor:
        """Attention to the cache, which new keys and values go into first."""
        result: _Tensor
        if params.seqlen_offset == 0 or not self.use_flash_attn:
            result = self.inner_cross_attn(query, self._update_kv_cache(both, params))
            return result
        tables: dict[str, Any] = {}
        if not self._rotates_first(params):
            assert self.rotary_emb.scale_base is None, "This code path does not support xPos"
            self.rotary_emb._update_cos_sin_cache(params.max_seqlen, device=query.device, dtype=query.dtype)
            tables = {
                "rotary_cos": self.rotary_emb._cos_cached, "rotary_sin": self.rotary_emb._sin_cached,
                "rotary_interleaved": self.rotary_emb.interleaved,
            }  # fmt: skip
        batch, lengths = query.shape[0], params.lengths_per_sample
        cache = params.key_value_memory_dict[self.layer_idx][:batch]
        result = flash_attn_with_kvcache(
            query, cache[:, :, 0], cache[:, :, 1], both[:, :, 0], both[:, :, 1], **tables,
            cache_seqlens=params.seqlen_offset if lengths is None else lengths[:batch],
            softmax_scale=self.inner_cross_attn.softmax_scale, causal=self.inner_cross_attn.causal,
            alibi_slopes=self.inner_cross_attn.alibi_slopes,
        )  # fmt: skip
        return result

    def _update_kv_cache(self, kv: _Tensor, inference_params: Any) -> _Tensor:
        """Write into the cache, which is made at the first call; returns what it holds by now."""
        assert not self.dwconv, "Generation does not support dwconv yet"
        assert self.layer_idx is not None, "Generation requires layer_idx in the constructor"
        known = inference_params.key_value_memory_dict
        if self.layer_idx not in known:
            shape = (inference_params.max_batch_size, inference_params.max_seqlen, *kv.shape[2:])
            known[self.layer_idx] = kv.new_empty(shape)
        first, place = inference_params.batch_size_offset, inference_params.seqlen_offset
        last, end = first + kv.shape[0], place + kv.shape[1]
        cache: _Tensor = known[self.layer_idx]
        assert last <= cache.shape[0]
        assert end <= cache.shape[1]
        cache[first:last, place:end] = kv
        return cache[first:last, :end]
