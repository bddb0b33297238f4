"""The functions of flash-attn 2, with its arguments and defaults, as in its README and docstrings.

Tensors are float16 or bfloat16, on a GPU of compute capability 8.0 or higher. Shapes: q (batch, queries, heads,
width), k and v (batch, keys, heads of keys, width); with lengths, tokens of all sequences are packed: q (tokens,
heads, width). `kv` is (..., 2, heads of keys, width), `qkv` is (..., 3, heads, width). The number of heads is a
multiple of that of the keys, and a width is at most 256.

Common arguments: `dropout_p` (probability of dropping an attention weight), `softmax_scale` (1 / sqrt(width) if None),
`causal` (the last query sees the last key), `window_size` (left, right: query i sees keys from i + keys - queries -
left to i + keys - queries + right; -1: no limit), `softcap` (scores s become softcap * tanh(s / softcap); 0: as they
are), `alibi_slopes` (heads,) or (batch, heads) in float32 (adds -slope * |i + keys - queries - j|), `deterministic`
(of backward). With `return_attn_probs` a function returns (output, log-sum-exp, probabilities); probabilities are there
only with dropout, negative where dropped. Errors: RuntimeError in the package's words.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from vgpu.torch_integration.flash_attention import cache
from vgpu.torch_integration.flash_attention.operators import functions

_Tensor = torch.Tensor
_flash_attn_forward, _flash_attn_varlen_forward, _flash_attn_backward, _flash_attn_varlen_backward = functions()
_wrapped_flash_attn_forward = torch.ops.flash_attn._flash_attn_forward
_wrapped_flash_attn_backward = torch.ops.flash_attn._flash_attn_backward
_wrapped_flash_attn_varlen_forward = torch.ops.flash_attn._flash_attn_varlen_forward
_wrapped_flash_attn_varlen_backward = torch.ops.flash_attn._flash_attn_varlen_backward
_NOTHING = (None,) * 13


class _Attention(torch.autograd.Function):
    """All of the functions with gradients.

    `packing` says how the operands come: "" for q, k and v, "kv" for q and kv, "qkv" for all in one. `lengths` are
    None, or cumulative lengths of queries and keys (of both, for "qkv") and the longest of each.
    """

    @staticmethod
    def forward(
        ctx: Any, packing: str, q: _Tensor, k: _Tensor | None, v: _Tensor | None, cu_q: _Tensor | None,
        cu_k: _Tensor | None, longest: tuple[int, int] | None, block_table: _Tensor | None, dropout_p: float,
        softmax_scale: float | None, causal: bool, window_size: tuple[int, int], softcap: float,
        alibi_slopes: _Tensor | None, deterministic: bool, return_softmax: bool, is_grad_enabled: bool,
    ) -> Any:  # fmt: skip
        cu_k = cu_q if packing == "qkv" else cu_k
        needs_grad = any(x is not None and x.requires_grad for x in (q, k, v))
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        query, key, value = _unpacked(packing, q, k, v)
        width = query.shape[-1]
        odd = -width % 8
        if odd:
            query, key, value = (functional.pad(x, [0, odd]) for x in (query, key, value))
        options = {
            "dropout_p": dropout_p, "softmax_scale": scale, "causal": causal, "window_size_left": window_size[0],
            "window_size_right": window_size[1], "softcap": softcap, "alibi_slopes": alibi_slopes,
        }  # fmt: skip
        shows = return_softmax and dropout_p > 0
        if longest is None:
            output, sums, probabilities, state = _wrapped_flash_attn_forward(
                query, key, value, **options, return_softmax=shows
            )
        else:
            output, sums, probabilities, state = _wrapped_flash_attn_varlen_forward(
                query, key, value, cu_q, cu_k, *longest, **options, return_softmax=shows, block_table=block_table
            )
        if is_grad_enabled and needs_grad:
            ctx.save_for_backward(query, key, value, output, sums, state, cu_q, cu_k, alibi_slopes)
            options.pop("alibi_slopes")
            ctx.packing, ctx.longest, ctx.options, ctx.deterministic = packing, longest, options, deterministic
        output = output[..., :width]
        return (output, sums, probabilities) if return_softmax else output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, output, sums, state, cu_q, cu_k, alibi_slopes = ctx.saved_tensors
        gradient, width = gradients[0], gradients[0].shape[-1]
        if width % 8:
            gradient = functional.pad(gradient, [0, -width % 8])
        made, (d_query, d_key, d_value) = _gradients(ctx.packing, query, key, value)
        options = {**ctx.options, "alibi_slopes": alibi_slopes, "deterministic": ctx.deterministic, "rng_state": state}
        if ctx.longest is None:
            _wrapped_flash_attn_backward(gradient, query, key, value, output, sums, d_query, d_key, d_value, **options)
        else:
            _wrapped_flash_attn_varlen_backward(
                gradient, query, key, value, output, sums, d_query, d_key, d_value, cu_q, cu_k, *ctx.longest, **options
            )
        return None, *(None if x is None else x[..., :width] for x in made), *_NOTHING


def maybe_contiguous(x: _Tensor | None) -> _Tensor | None:
    """A copy, if elements of the last dimension are not neighbours."""
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def _unpacked(packing: str, q: _Tensor, k: _Tensor | None, v: _Tensor | None) -> tuple[_Tensor, _Tensor, _Tensor]:
    if packing == "qkv":
        return q.select(-3, 0).detach(), q.select(-3, 1).detach(), q.select(-3, 2).detach()
    assert k is not None
    if packing == "kv":
        return q, k.select(-3, 0).detach(), k.select(-3, 1).detach()
    assert v is not None
    return q, k, v


def _gradients(packing: str, query: _Tensor, key: _Tensor, value: _Tensor) -> tuple[Any, Any]:
    """Gradients of the arguments, and their parts for query, key and value."""
    if packing == "qkv":
        whole = query.new_empty((*query.shape[:-2], 3, *query.shape[-2:]))
        return (whole, None, None), (whole.select(-3, 0), whole.select(-3, 1), whole.select(-3, 2))
    d_query = torch.empty_like(query)
    if packing == "kv":
        both = key.new_empty((*key.shape[:-2], 2, *key.shape[-2:]))
        return (d_query, both, None), (d_query, both.select(-3, 0), both.select(-3, 1))
    parts = d_query, torch.empty_like(key), torch.empty_like(value)
    return parts, parts


def flash_attn_func(
    q: _Tensor, k: _Tensor, v: _Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: _Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of q, k and v. Returns (batch, queries, heads, width)."""
    return _Attention.apply(
        "", q, k, v, None, None, None, None, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs, torch.is_grad_enabled(),
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q: _Tensor, kv: _Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: _Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """The same with keys and values in one tensor, whose gradient is one, too."""
    return _Attention.apply(
        "kv", q, kv, None, None, None, None, None, dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, deterministic, return_attn_probs, torch.is_grad_enabled(),
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: _Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: _Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """The same with all three in one tensor."""
    return _Attention.apply(
        "qkv", qkv, None, None, None, None, None, None, dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, deterministic, return_attn_probs, torch.is_grad_enabled(),
    )  # fmt: skip


def flash_attn_varlen_func(
    q: _Tensor, k: _Tensor, v: _Tensor, cu_seqlens_q: _Tensor, cu_seqlens_k: _Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: _Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: _Tensor | None = None,
) -> Any:  # fmt: skip
    """Attention within each of several sequences. Returns (tokens, heads, width).

    cu_seqlens_q, cu_seqlens_k: (batch + 1,) in int32, where each sequence begins. block_table: (batch, pages) in int32;
    then k and v are (pages, rows, heads of keys, width), with a multiple of 256 rows.
    """
    return _Attention.apply(
        "", q, k, v, cu_seqlens_q, cu_seqlens_k, (max_seqlen_q, max_seqlen_k), block_table, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs, torch.is_grad_enabled(),
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: _Tensor, kv: _Tensor, cu_seqlens_q: _Tensor, cu_seqlens_k: _Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: _Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """The same with keys and values in one tensor."""
    return _Attention.apply(
        "kv", q, kv, None, cu_seqlens_q, cu_seqlens_k, (max_seqlen_q, max_seqlen_k), None, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs, torch.is_grad_enabled(),
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: _Tensor, cu_seqlens: _Tensor, max_seqlen: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: _Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """The same with all three in one tensor."""
    return _Attention.apply(
        "qkv", qkv, None, None, cu_seqlens, None, (max_seqlen, max_seqlen), None, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs, torch.is_grad_enabled(),
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: _Tensor, k_cache: _Tensor, v_cache: _Tensor, k: _Tensor | None = None, v: _Tensor | None = None,
    rotary_cos: _Tensor | None = None, rotary_sin: _Tensor | None = None, cache_seqlens: int | _Tensor | None = None,
    cache_batch_idx: _Tensor | None = None, cache_leftpad: _Tensor | None = None, block_table: _Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: _Tensor | None = None, num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention to a cache, to which k and v are appended in place, if given, at `cache_seqlens`. Without gradients.

    k_cache, v_cache: (sequences, keys, heads of keys, width), or with `block_table` (batch, pages) they are pages.
    rotary_cos, rotary_sin: (places, rotated width / 2); q and k are rotated. cache_batch_idx: (batch,), the sequence of
    the cache for each of q. cache_leftpad: (batch,), its first key. Indices and lengths are int32.
    Returns (batch, queries, heads, width), and with `return_softmax_lse` the log-sum-exp (batch, heads, queries).
    """
    assert k_cache.stride(-1) == 1, "k_cache must have contiguous last dimension"
    assert v_cache.stride(-1) == 1, "v_cache must have contiguous last dimension"
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=k_cache.device)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    output, sums = cache.Cache(
        q.contiguous() if q.stride(-1) != 1 else q, k_cache, v_cache, maybe_contiguous(k), maybe_contiguous(v),
        cache_seqlens, rotary_cos, rotary_sin, maybe_contiguous(cache_batch_idx), cache_leftpad,
        maybe_contiguous(block_table), alibi_slopes, scale, causal, window_size, softcap, rotary_interleaved,
        num_splits,
    ).run()  # fmt: skip
    return (output, sums) if return_softmax_lse else output
