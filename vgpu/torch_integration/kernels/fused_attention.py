"""The arithmetic of fused attention, without ever making all scores: one attention problem, forward and backward.

Without dropout the CPU's flash kernel does it, else it is done in pieces (T. Dao et al., "FlashAttention", 2022,
algorithms 2 and 4). The dropout mask comes from a seed, so that backward uses the mask of forward. Not here: the
operations' arguments and results (`vgpu.torch_integration.kernels.cuda_kernels`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

_Tensor = torch.Tensor
_aten = torch.ops.aten
_flash = _aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
# Scores that exist at a time where attention is computed in pieces (64 MiB in FP32).
_PIECE_ELEMENTS = 1 << 24


class FusedAttention:
    """One attention: operands in FP32 with one key and value head per query head."""

    def __init__(
        self, query: _Tensor, key: _Tensor, value: _Tensor, bias: _Tensor | None, dropout: float, causal: bool,
        scale: float | None, seed: _Tensor,
    ) -> None:  # fmt: skip
        wide = torch.promote_types(query.dtype, torch.float32)
        self.groups = query.shape[1] // key.shape[1]
        self.query = query.to(wide)
        self.key = key.to(wide).repeat_interleave(self.groups, 1)
        self.value = value.to(wide).repeat_interleave(self.groups, 1)
        self.scale = scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])
        self.dropout, self.causal, self.seed = dropout, causal, seed
        batch, heads, rows = query.shape[:3]
        self.shape = batch, heads, rows, key.shape[2]
        self.bias = None if bias is None else bias.to(wide).expand(self.shape)

    @property
    def is_plain(self) -> bool:
        """Whether the CPU's flash kernel can do it."""
        return self.dropout == 0.0 and self.query.shape[-1] == self.value.shape[-1]

    def pieces(self) -> Iterator[tuple[Any, _Tensor, _Tensor | None]]:
        """(where, scores, kept-and-scaled dropout mask) for some rows of one head at a time."""
        batch, heads, rows, columns = self.shape
        step = max(1, min(rows, _PIECE_ELEMENTS // max(columns, 1)))
        generator = torch.Generator().manual_seed(int(self.seed.item())) if self.dropout > 0.0 else None
        for sample in range(batch):
            for head in range(heads):
                for first in range(0, rows, step):
                    where = sample, head, slice(first, min(first + step, rows))
                    scores = self.query[where] @ self.key[sample, head].T * self.scale
                    if self.bias is not None:
                        scores = scores + self.bias[where]
                    if self.causal:
                        at = torch.arange(where[2].start, where[2].stop)[:, None]
                        scores = scores.masked_fill(torch.arange(columns)[None] > at, -math.inf)
                    kept = None
                    if generator is not None:
                        kept = torch.rand(scores.shape, generator=generator) >= self.dropout
                        kept = kept.to(scores.dtype) / (1.0 - self.dropout)
                    yield where, scores, kept

    def forward(self) -> tuple[_Tensor, _Tensor]:
        """(output, log-sum-exp)."""
        if self.is_plain:
            result: tuple[_Tensor, _Tensor] = _flash(
                self.query, self.key, self.value, 0.0, self.causal, attn_mask=self.bias, scale=self.scale
            )
            return result
        output = self.query.new_empty((*self.shape[:3], self.value.shape[-1]))
        sums = self.query.new_empty(self.shape[:3])
        for where, scores, kept in self.pieces():
            sums[where] = scores.logsumexp(-1)
            # A row that is masked altogether gives zeros.
            weights = scores.softmax(-1).nan_to_num_(0.0)
            output[where] = (weights if kept is None else weights * kept) @ self.value[where[:2]]
        return output, sums

    def backward(self, gradient: _Tensor, output: _Tensor, sums: _Tensor, *, bias: bool) -> list[_Tensor | None]:
        """Gradients of query, key, value and, where asked for, of the bias."""
        gradient, output = gradient.to(self.query.dtype), output.to(self.query.dtype)
        if self.is_plain and not bias:
            grads = _flash_backward(
                gradient, self.query, self.key, self.value, output, sums, 0.0, self.causal,
                attn_mask=self.bias, scale=self.scale,
            )  # fmt: skip
            return [grads[0], self._gathered(grads[1]), self._gathered(grads[2]), None]
        d_query, d_key, d_value = (torch.zeros_like(tensor) for tensor in (self.query, self.key, self.value))
        d_bias = self.query.new_zeros(self.shape) if bias else None
        for where, scores, kept in self.pieces():
            head = where[:2]
            weights = (scores - sums[where][..., None]).exp().nan_to_num_(0.0)
            d_value[head] += (weights if kept is None else weights * kept).T @ gradient[where]
            d_weights = gradient[where] @ self.value[head].T
            if kept is not None:
                d_weights = d_weights * kept
            d_scores = weights * (d_weights - (gradient[where] * output[where]).sum(-1, keepdim=True))
            d_query[where] = d_scores @ self.key[head] * self.scale
            d_key[head] += d_scores.T @ self.query[where] * self.scale
            if d_bias is not None:
                d_bias[where] = d_scores
        return [d_query, self._gathered(d_key), self._gathered(d_value), d_bias]

    def _gathered(self, gradient: _Tensor) -> _Tensor:
        """The gradients of the query heads that share a key head, added up."""
        return gradient if self.groups == 1 else gradient.unflatten(1, (-1, self.groups)).sum(2)
