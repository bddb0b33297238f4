"""A batch of sequences for FlashAttention-2: each one's part of the tensors, equally long or packed behind each other.

Packed ones are told apart by cumulative lengths; keys may be in pages of a cache (csrc/flash_attn/src/block_info.h).
Methods that are given the index of a sequence read values and write them: call them beneath the modes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vgpu.torch_integration.compiled.graphs import beneath
from vgpu.torch_integration.flash_attention import launching
from vgpu.torch_integration.flash_attention.checks import Sizes

_Tensor = torch.Tensor
_BLOCK_ROWS = 128


@dataclass(frozen=True)
class Batch:
    """Query, key and value of all sequences.

    `starts_of_queries` and `starts_of_keys` are cumulative lengths, None for equally long ones. `pages` are the blocks
    of each sequence, `left` the keys that it leaves out in front, `used` the number of its keys.
    """

    query: _Tensor
    key: _Tensor
    value: _Tensor
    sizes: Sizes
    starts_of_queries: _Tensor | None = None
    starts_of_keys: _Tensor | None = None
    pages: _Tensor | None = None
    left: _Tensor | None = None
    used: _Tensor | None = None

    @property
    def is_dense(self) -> bool:
        """Whether all sequences are equally long."""
        return self.starts_of_queries is None

    @property
    def is_paged(self) -> bool:
        """Whether the keys are in pages."""
        return self.pages is not None

    @property
    def tensors(self) -> Sequence[_Tensor]:
        """All that the kernel reads."""
        optional = (self.starts_of_queries, self.starts_of_keys, self.pages, self.left, self.used)
        return (self.query, self.key, self.value, *(tensor for tensor in optional if tensor is not None))

    def lengths(self) -> launching.Lengths:
        """Queries and keys of each sequence; with shapes only, packed ones are taken to be equally long."""
        sizes = self.sizes
        if self.is_dense:
            return [(sizes.queries, sizes.keys)] * sizes.batch
        if not launching.gpu_of(self.query).values:
            queries = min(sizes.queries, -(-self.query.shape[0] // sizes.batch))
            keys = sizes.keys if self.is_paged else min(sizes.keys, -(-self.key.shape[0] // sizes.batch))
            return [(queries, keys)] * sizes.batch
        with beneath():
            return [(len(self._of_queries(index)), len(self._of_keys(index))) for index in range(sizes.batch)]

    def outside(self) -> Exception | None:
        """Cumulative lengths that reach beyond the tensors, or None."""
        if self.is_dense or not launching.gpu_of(self.query).values:
            return None
        assert self.starts_of_queries is not None
        assert self.starts_of_keys is not None
        rows = self.sizes.keys if self.pages is not None else self.key.shape[0]
        places = [("cu_seqlens_q", self.starts_of_queries, self.query.shape[0])]
        if self.pages is None:
            places.append(("cu_seqlens_k", self.starts_of_keys, rows))
        for name, starts, most in places:
            with beneath():
                low, high = int(starts.min()), int(starts.max())
            if low < 0 or high > most:
                return IndexError(f"{name} has {low if low < 0 else high}, of {most} tokens")
        return None

    # ---- beneath the modes -------------------------------------------------------------------------------------------

    def operands(self, index: int) -> tuple[_Tensor, _Tensor, _Tensor]:
        """Of a sequence: (queries, heads, width), twice (keys, heads of keys, width)."""
        query = self.rows(self.query, index)
        if self.is_dense:
            return query, self.key[index], self.value[index]
        keys = self._of_keys(index)
        if self.pages is None:
            return query, self.key[keys.start : keys.stop], self.value[keys.start : keys.stop]
        return query, gathered(self.key, self.pages[index], keys), gathered(self.value, self.pages[index], keys)

    def rows(self, tensor: _Tensor, index: int) -> _Tensor:
        """The part of a tensor that has a row per query."""
        if self.is_dense:
            return tensor[index]
        queries = self._of_queries(index)
        return tensor[queries.start : queries.stop]

    def rows_of_sums(self, sums: _Tensor, index: int) -> _Tensor:
        """(heads, queries) of the log-sum-exp."""
        if self.is_dense:
            return sums[index]
        queries = self._of_queries(index)
        return sums[:, queries.start : queries.stop]

    def put(self, target: _Tensor, index: int, values: _Tensor) -> None:
        """Write rows of queries; the grid of a kernel has rows for the longest sequence that the caller names."""
        most = -(-self.sizes.queries // _BLOCK_ROWS) * _BLOCK_ROWS
        self.rows(target, index)[:most].copy_(values[:most])

    def put_rows(self, sums: _Tensor, index: int, values: _Tensor) -> None:
        """The same for the log-sum-exp."""
        most = -(-self.sizes.queries // _BLOCK_ROWS) * _BLOCK_ROWS
        self.rows_of_sums(sums, index)[:, :most].copy_(values[:, :most])

    def put_keys(self, target: _Tensor, index: int, values: _Tensor) -> None:
        """Write rows of keys."""
        keys = None if self.is_dense else self._of_keys(index)
        (target[index] if keys is None else target[keys.start : keys.stop]).copy_(values)

    def put_products(self, target: _Tensor, index: int, values: _Tensor) -> None:
        """The row sums of backward, of which each packed sequence has a block more (flash_api.cpp, `softmax_d`)."""
        if self.is_dense:
            target[index, :, : values.shape[1]].copy_(values)
            return
        first = self._of_queries(index).start + _BLOCK_ROWS * index
        target[:, first : first + values.shape[1]].copy_(values)

    def _of_queries(self, index: int) -> range:
        assert self.starts_of_queries is not None
        return _between(self.starts_of_queries, index, self.query.shape[0])

    def _of_keys(self, index: int) -> range:
        """Rows of the keys; in pages, places of the sequence."""
        assert self.starts_of_keys is not None
        begin, end = int(self.starts_of_keys[index]), int(self.starts_of_keys[index + 1])
        if self.pages is not None:
            begin, end = 0, end - begin
        if self.used is not None:
            end = begin + int(self.used[index])
        if self.left is not None:
            begin += int(self.left[index])
        most = self.pages.shape[1] * self.key.shape[1] if self.pages is not None else self.key.shape[0]
        return _inside(begin, end, most)


def dense(query: _Tensor, key: _Tensor, value: _Tensor, sizes: Sizes) -> Batch:
    """Equally long sequences."""
    return Batch(query, key, value, sizes)


def packed(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    sizes: Sizes,
    queries: _Tensor,
    keys: _Tensor,
    pages: _Tensor | None = None,
    left: _Tensor | None = None,
    used: _Tensor | None = None,
) -> Batch:
    """Sequences behind each other, by their cumulative lengths."""
    return Batch(query, key, value, sizes, queries, keys, pages, left, used)


def gathered(cache: _Tensor, pages: _Tensor, places: range) -> _Tensor:
    """Places of a sequence whose page number n is `cache[pages[n]]`, in a new tensor."""
    at = torch.arange(places.start, places.stop)
    rows = cache.shape[1]
    return cache[pages.long()[at // rows], at % rows]


def _between(starts: _Tensor, index: int, most: int) -> range:
    return _inside(int(starts[index]), int(starts[index + 1]), most)


def _inside(begin: int, end: int, most: int) -> range:
    begin = min(max(begin, 0), most)
    return range(begin, max(begin, min(end, most)))
