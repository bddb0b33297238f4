"""Rotary embeddings: functions, and the module that keeps their tables.

x is (batch, places, heads, width), or with `cu_seqlens` (tokens, heads, width); cos and sin are (places, rotated width
/ 2). `interleaved` pairs neighbours, otherwise an element of the first half with one of the second. Source of names and
results: flash_attn/layers/rotary.py of flash-attn 2.8; J. Su et al., "RoFormer", 2021 (arXiv:2104.09864).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from typing import Any

import torch

from ..ops.triton.rotary import apply_rotary

_Tensor = torch.Tensor
_Offset = int | _Tensor


class ApplyRotaryEmb(torch.autograd.Function):
    """One kernel; its gradient turns back."""

    @staticmethod
    def forward(
        ctx: Any, x: _Tensor, cos: _Tensor, sin: _Tensor, interleaved: bool = False, inplace: bool = False,
        seqlen_offsets: _Offset = 0, cu_seqlens: _Tensor | None = None, max_seqlen: int | None = None,
    ) -> _Tensor:  # fmt: skip
        ctx.saved = interleaved, inplace, max_seqlen, None if isinstance(seqlen_offsets, _Tensor) else seqlen_offsets
        offsets = seqlen_offsets if isinstance(seqlen_offsets, _Tensor) else None
        ctx.save_for_backward(cos, sin, cu_seqlens, offsets)
        # In place, x is what comes back; like the package, this does not tell autograd that it has changed.
        return apply_rotary(
            x, cos, sin, seqlen_offsets=seqlen_offsets, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen,
            interleaved=interleaved, inplace=inplace,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        cos, sin, cu_seqlens, offsets = ctx.saved_tensors
        interleaved, inplace, max_seqlen, offset = ctx.saved
        turned = apply_rotary(
            gradients[0], cos, sin, seqlen_offsets=offset if offsets is None else offsets, cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen, interleaved=interleaved, inplace=inplace, conjugate=True,
        )  # fmt: skip
        return turned, *(None,) * 7


def apply_rotary_emb(
    x: _Tensor, cos: _Tensor, sin: _Tensor, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: _Offset = 0, cu_seqlens: _Tensor | None = None, max_seqlen: int | None = None,
) -> Any:  # fmt: skip
    """Rotate the first elements of each head; each sequence begins at its offset. Returns the shape of x."""
    return ApplyRotaryEmb.apply(x, cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen)


apply_rotary_emb_func = apply_rotary_emb
"""An older name."""


def apply_rotary_emb_torch(x: _Tensor, cos: _Tensor, sin: _Tensor, interleaved: bool = False) -> _Tensor:
    """The same with PyTorch's operations, at offset 0."""
    half = cos.shape[-1]
    assert 2 * half <= x.shape[-1]
    part, rest = x[..., : 2 * half], x[..., 2 * half :]
    cosine, sine = cos.unsqueeze(-2), sin.unsqueeze(-2)
    left, right = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, dim=-1)
    turned = left * cosine - right * sine, left * sine + right * cosine
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([joined, rest], -1)


class _InPlace(torch.autograd.Function):
    """Rotates parts of a tensor in place; `parts` are ranges of its axis of heads, or of what is packed."""

    @staticmethod
    def forward(
        ctx: Any, packed: _Tensor, parts: tuple[tuple[int, int, _Tensor, _Tensor], ...], interleaved: bool,
        seqlen_offsets: _Offset,
    ) -> _Tensor:  # fmt: skip
        ctx.saved = parts, interleaved, seqlen_offsets
        _rotate(packed, *ctx.saved)
        return packed

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _rotate(gradients[0], *ctx.saved, conjugate=True)
        return gradients[0], None, None, None


def _rotate(
    packed: _Tensor, parts: tuple[tuple[int, int, _Tensor, _Tensor], ...], interleaved: bool, offsets: _Offset, *,
    conjugate: bool = False,
) -> None:  # fmt: skip
    for first, last, cos, sin in parts:
        part = packed[:, :, first:last]
        apply_rotary(
            part.flatten(2, -2), cos, sin, seqlen_offsets=offsets, interleaved=interleaved, inplace=True,
            conjugate=conjugate,
        )  # fmt: skip


def apply_rotary_emb_qkv_(
    qkv: _Tensor, cos: _Tensor, sin: _Tensor, cos_k: _Tensor | None = None, sin_k: _Tensor | None = None,
    interleaved: bool = False, seqlen_offsets: _Offset = 0, num_heads_q: int | None = None,
) -> Any:  # fmt: skip
    """Rotate q and k of qkv (batch, places, 3, heads, width), or (batch, places, all heads, width), in place.

    One kernel does both if they have the same tables.
    """
    queries, both = 1, 2
    if qkv.dim() == 5:
        assert qkv.shape[2] == 3
    else:
        assert qkv.dim() == 4
        assert num_heads_q is not None
        queries, both = num_heads_q, num_heads_q + (qkv.shape[2] - num_heads_q) // 2
        assert qkv.shape[2] == 2 * both - queries
    if cos_k is None and sin_k is None and qkv.is_contiguous():
        return _InPlace.apply(qkv, ((0, both, cos, sin),), interleaved, seqlen_offsets)
    of_key = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    parts = (0, queries, cos, sin), (queries, both, *of_key)
    return _InPlace.apply(qkv, parts, interleaved, seqlen_offsets)


def apply_rotary_emb_kv_(
    kv: _Tensor, cos: _Tensor, sin: _Tensor, interleaved: bool = False, seqlen_offsets: _Offset = 0
) -> Any:
    """Rotate k of kv (batch, places, 2, heads, width) in place."""
    assert kv.shape[2] == 2
    return _InPlace.apply(kv, ((0, 1, cos, sin),), interleaved, seqlen_offsets)


class RotaryEmbedding(torch.nn.Module):
    """Rotates q and k by their places; with `scale_base` by xPos (Y. Sun et al. 2022, arXiv:2212.10554)."""

    def __init__(
        self, dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: float | None = None,
        device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        scale = None
        if scale_base is not None:
            scale = (torch.arange(0, dim, 2, device=device, dtype=torch.float32) + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: _Tensor | None = None
        self._sin_cached: _Tensor | None = None
        self._cos_k_cached: _Tensor | None = None
        self._sin_k_cached: _Tensor | None = None

    def _compute_inv_freq(self, device: Any = None) -> _Tensor:
        exponents = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim
        return 1.0 / (self.base**exponents)

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: torch.dtype | None = None) -> None:
        """Make tables for so many places, if they are longer, elsewhere, or of another dtype than those before."""
        known = self._cos_cached
        if (
            known is not None
            and seqlen <= self._seq_len_cached
            and known.device == device
            and known.dtype == dtype
            and not (self.training and known.is_inference())
        ):
            return
        self._seq_len_cached = seqlen
        places = torch.arange(seqlen, device=device, dtype=torch.float32)
        frequencies: _Tensor = self.inv_freq  # type: ignore[assignment]
        if frequencies.dtype != torch.float32:
            frequencies = self._compute_inv_freq(device)
        angles = torch.outer(places, frequencies)
        if self.scale_base is None:
            self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)
            return
        base: _Tensor = self.scale  # type: ignore[assignment]
        scale = base.to(places.device) ** ((places - seqlen // 2) / self.scale_base)[:, None]
        self._cos_cached, self._sin_cached = (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (angles.cos() / scale).to(dtype), (angles.sin() / scale).to(dtype)

    def forward(
        self, qkv: _Tensor, kv: _Tensor | None = None, seqlen_offset: _Offset = 0, max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:  # fmt: skip
        """Rotate q and k of `qkv` in place; with `kv`, the first is q alone: (q, kv) comes back."""
        if max_seqlen is not None:
            self._update_cos_sin_cache(max_seqlen, device=qkv.device, dtype=qkv.dtype)
        elif isinstance(seqlen_offset, int):
            self._update_cos_sin_cache(qkv.shape[1] + seqlen_offset, device=qkv.device, dtype=qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        assert cos is not None
        assert sin is not None
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, self._cos_k_cached, self._sin_k_cached, interleaved=self.interleaved,
                seqlen_offsets=seqlen_offset, num_heads_q=num_heads_q,
            )  # fmt: skip
        query = apply_rotary_emb_func(
            qkv, cos, sin, interleaved=self.interleaved, inplace=True, seqlen_offsets=seqlen_offset
        )
        if self._cos_k_cached is not None and self._sin_k_cached is not None:
            cos, sin = self._cos_k_cached, self._sin_k_cached
        return query, apply_rotary_emb_kv_(kv, cos, sin, interleaved=self.interleaved, seqlen_offsets=seqlen_offset)
