"""The arithmetic of FlashAttention-2 for one sequence, in pieces: all scores never exist at once.

Computed in FP32 from 16-bit operands, as tensor cores accumulate (T. Dao, "FlashAttention-2", 2023, algorithms 1 and
2). Masks, biases and the values of rows that see nothing: csrc/flash_attn/src/mask.h and softmax.h. Tensors are plain
ones of the CPU here. Not here: batches, memory and time (`vgpu.torch_integration.flash_attention.operators`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from vgpu.torch_integration.flash_attention import dropout
from vgpu.torch_integration.flash_attention.dropout import DropoutMask

_Tensor = torch.Tensor
# Scores that exist at a time, of all heads together (32 MiB in FP32).
_PIECE_ELEMENTS = 1 << 23


class Window(NamedTuple):
    """Query i sees key j if `i + keys - queries - left <= j <= i + keys - queries + right`; -1: no limit."""

    left: int
    right: int

    @classmethod
    def of(cls, left: int, right: int, keys: int, *, causal: bool) -> Window:
        """What a kernel is given (flash_api.cpp, `mha_fwd`): a limit that no key is beyond is none."""
        left = -1 if left < 0 or left >= keys else left
        right = -1 if right < 0 or right >= keys else right
        return cls(left, 0 if causal else right)

    @property
    def is_causal(self) -> bool:
        """Whether a kernel for causal masks does it, without a limit on the left."""
        return self.left < 0 and self.right == 0

    @property
    def is_open(self) -> bool:
        """Whether every query sees every key."""
        return self.left < 0 and self.right < 0

    def columns(self, rows: range, queries: int, keys: int) -> range:
        """The keys that any of these queries sees."""
        shift = keys - queries
        first = max(0, rows.start + shift - self.left) if self.left >= 0 else 0
        last = min(keys, rows.stop + shift + self.right) if self.right >= 0 else keys
        return range(first, max(first, last))

    def seen(self, queries: int, keys: int) -> int:
        """Entries of the attention matrix that are not masked."""
        if self.is_open:
            return queries * keys
        at = torch.arange(queries) + (keys - queries)
        first = (at - self.left).clamp(min=0) if self.left >= 0 else torch.zeros_like(at)
        last = (at + self.right + 1).clamp(max=keys) if self.right >= 0 else torch.full_like(at, keys)
        return int((last - first).clamp(min=0).sum())


class Piece(NamedTuple):
    """Some rows of the attention matrix of all heads, and the columns that they see."""

    rows: slice
    columns: slice
    scores: _Tensor
    """(heads, rows, columns), minus infinity where masked."""
    slope: _Tensor | None
    """Derivative of the scores by those before the soft cap."""
    kept: _Tensor | None
    """The dropout mask, with its scale."""


class Attention:
    """One sequence: query (queries, heads, width), key and value (keys, heads of keys, width)."""

    def __init__(
        self,
        query: _Tensor,
        key: _Tensor,
        value: _Tensor,
        *,
        scale: float,
        window: Window,
        softcap: float = 0.0,
        slopes: _Tensor | None = None,
        mask: DropoutMask | None = None,
    ) -> None:
        """`slopes`: of ALiBi, a number per head of the queries."""
        self.groups = query.shape[1] // max(key.shape[1], 1)
        self.query = query.transpose(0, 1).float()
        self.key, self.value = (
            tensor.transpose(0, 1).float().repeat_interleave(self.groups, 0) for tensor in (key, value)
        )
        self.scale, self.window, self.softcap, self.slopes, self.mask = scale, window, softcap, slopes, mask
        self.queries, self.keys = query.shape[0], key.shape[0]

    def forward(self, probabilities: _Tensor | None = None) -> tuple[_Tensor, _Tensor]:
        """Output (queries, heads, width) and log-sum-exp (heads, queries), in FP32.

        A row that sees nothing gives zeros, and infinity. `probabilities` (heads, queries, keys or more) gets what
        `return_attn_probs` shows: negative where dropped.
        """
        output = torch.zeros_like(self.query)
        sums = self.query.new_full(self.query.shape[:2], math.inf)
        for piece in self.pieces():
            sums[:, piece.rows] = _logarithms(piece.scores)
            weights = torch.exp(piece.scores - sums[:, piece.rows, None])
            kept = weights if piece.kept is None else weights * piece.kept
            output[:, piece.rows] = kept @ self.value[:, piece.columns]
            if probabilities is not None and piece.kept is not None:
                probabilities[:, piece.rows, piece.columns] = torch.where(piece.kept > 0, weights, -weights).to(
                    probabilities.dtype
                )
        return output.transpose(0, 1), sums

    def backward(self, gradient: _Tensor, output: _Tensor, sums: _Tensor) -> tuple[_Tensor, _Tensor, _Tensor]:
        """Gradients of query, key and value in FP32, those of key and value for each head of the queries."""
        gradient, output = (tensor.transpose(0, 1).float() for tensor in (gradient, output))
        product = (gradient * output).sum(-1, keepdim=True)
        d_query, d_key, d_value = (torch.zeros_like(tensor) for tensor in (self.query, self.key, self.value))
        for piece in self.pieces():
            rows, columns = piece.rows, piece.columns
            weights = torch.exp(piece.scores - sums[:, rows, None])
            d_weights = gradient[:, rows] @ self.value[:, columns].mT
            kept = weights
            if piece.kept is not None:
                kept, d_weights = weights * piece.kept, d_weights * piece.kept
            d_value[:, columns] += kept.mT @ gradient[:, rows]
            d_scores = weights * (d_weights - product[:, rows]) * self.scale
            if piece.slope is not None:
                d_scores *= piece.slope
            d_query[:, rows] = d_scores @ self.key[:, columns]
            d_key[:, columns] += d_scores.mT @ self.query[:, rows]
        return d_query.transpose(0, 1), d_key.transpose(0, 1), d_value.transpose(0, 1)

    def pieces(self) -> Iterator[Piece]:
        """The attention matrix, some rows at a time; rows that see nothing are left out."""
        heads = self.query.shape[0]
        step = _PIECE_ELEMENTS // max(heads * self.keys, 1) // dropout.ROWS * dropout.ROWS
        step = max(step, dropout.ROWS)
        for first in range(0, self.queries, step):
            rows = range(first, min(first + step, self.queries))
            columns = self.window.columns(rows, self.queries, self.keys)
            # Whole tiles of the dropout mask; what is before them is masked.
            columns = range(columns.start // dropout.COLUMNS * dropout.COLUMNS, columns.stop)
            if columns:
                yield self._piece(rows, columns)

    def _piece(self, rows: range, columns: range) -> Piece:
        part, seen = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        scores, slope = self.query[:, part] @ self.key[:, seen].mT * self.scale, None
        if self.softcap > 0.0:
            bent = torch.tanh(scores / self.softcap)
            scores, slope = bent * self.softcap, 1.0 - bent * bent
        column = torch.arange(seen.start, seen.stop)
        away = torch.arange(part.start, part.stop)[:, None] + (self.keys - self.queries) - column
        if self.slopes is not None:
            # The kernel for causal masks adds the same to a whole column, which changes the log-sum-exp only.
            distance = -column.expand_as(away) if self.window.is_causal else away.abs()
            scores = scores - self.slopes.float()[:, None, None] * distance
        hidden = torch.zeros_like(away, dtype=torch.bool)
        if self.window.left >= 0:
            hidden |= away > self.window.left
        if self.window.right >= 0:
            hidden |= -away > self.window.right
        scores = scores.masked_fill(hidden, -math.inf)
        kept = None
        if self.mask is not None:
            kept = self.mask.kept(rows, columns).float() * self.mask.scale
        return Piece(part, seen, scores, slope, kept)


def _logarithms(scores: _Tensor) -> _Tensor:
    """Log-sum-exp of each row; infinity for one that sees nothing, whose weights are zeros then."""
    sums = scores.logsumexp(-1)
    return torch.where(sums == -math.inf, math.inf, sums)
