"""`flash_attn_with_kvcache`: keys and values in a cache that a call reads, and appends to in place.

Source: csrc/flash_attn/flash_api.cpp, `mha_fwd_kvcache`; the places of rotary embeddings and of rows in the cache:
flash_fwd_kernel.h, `compute_attn_1rowblock_splitkv`.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from vgpu.torch_integration.compiled.graphs import beneath
from vgpu.torch_integration.flash_attention import batches, checks, launching
from vgpu.torch_integration.flash_attention.checks import Checks, Sizes
from vgpu.torch_integration.flash_attention.launching import Launch
from vgpu.torch_integration.flash_attention.problem import Attention, Window
from vgpu.torch_integration.flash_attention.rotary import rotated

_Tensor = torch.Tensor


@dataclass(frozen=True)
class Cache:
    """A call, as its kernel gets it; names are those of the package."""

    q: _Tensor
    """(batch, queries, heads, width)"""
    k_cache: _Tensor
    """(sequences of the cache, its keys, heads of keys, width), or pages: (pages, rows, heads of keys, width)"""
    v_cache: _Tensor
    k: _Tensor | None
    v: _Tensor | None
    cache_seqlens: _Tensor | None
    rotary_cos: _Tensor | None
    rotary_sin: _Tensor | None
    cache_batch_idx: _Tensor | None
    cache_leftpad: _Tensor | None
    block_table: _Tensor | None
    alibi_slopes: _Tensor | None
    softmax_scale: float
    causal: bool
    window_size: tuple[int, int]
    softcap: float
    rotary_interleaved: bool
    num_splits: int

    @property
    def sizes(self) -> Sizes:
        """Of the call; keys are those that fit into the cache."""
        keys = self.k_cache.shape[1]
        if self.block_table is not None:
            keys *= self.block_table.shape[1]
        batch, queries, heads, width = self.q.shape
        return Sizes(batch, queries, keys, heads, self.k_cache.shape[2], width)

    @property
    def window(self) -> Window:
        """Which keys a query sees."""
        causal = self.causal and not (self.q.shape[1] == 1 and self.alibi_slopes is None)
        return Window.of(*self.window_size, self.sizes.keys, causal=causal)

    def check(self) -> None:
        """Raise RuntimeError in the package's words."""
        check, sizes = Checks(launching.machine()), self.sizes
        check.operands(self.q, self.k_cache, self.v_cache, names=("q", "kcache", "vcache"))
        if self.block_table is not None:
            checks.require(self.cache_batch_idx is None, "Paged KVcache does not support cache_batch_idx")
            check.block_table(self.block_table)
            checks.page(self.k_cache.shape[1])
        checks.sizes_of_call(sizes, padded=False)
        label = "batch_size_c, seqlen_k" if self.block_table is None else "num_blocks, page_block_size"
        for name, tensor in (("kcache", self.k_cache), ("vcache", self.v_cache)):
            expected = (*self.k_cache.shape[:2], sizes.key_heads, sizes.width)
            checks.shape(name, tensor, f"{label}, num_heads_k, head_size_og", *expected)
        if self.block_table is not None:
            pages = self.block_table.shape[1]
            checks.shape("block_table", self.block_table, "batch_size, max_num_blocks_per_seq", sizes.batch, pages)
        if self.k is not None:
            value = check.new_keys(self.q, self.k, self.v, self.cache_seqlens)
            text = "If key is supplied, it must have seqlen <= the seqlen of the KV cache"
            checks.require(sizes.queries <= sizes.keys, text)
            for name, tensor in (("k", self.k), ("v", value)):
                expected = (sizes.batch, self.k.shape[1], sizes.key_heads, sizes.width)
                checks.shape(name, tensor, "batch_size, seqlen_knew, num_heads_k, head_size_og", *expected)
        if self.cache_seqlens is not None:
            check.integers("seqlens_k", self.cache_seqlens, "batch_size", sizes.batch)
        if self.cache_leftpad is not None:
            text = "We don't support Paged KV and leftpad_k running at the same time yet"
            checks.require(self.block_table is None, text)
            check.integers("leftpad_k", self.cache_leftpad, "batch_size", sizes.batch)
        if self.rotary_cos is not None:
            check.rotary(self.q, self.rotary_cos, self.rotary_sin, sizes, has_keys=self.k is not None)
        if self.cache_batch_idx is not None:
            check.integers("cache_batch_idx", self.cache_batch_idx, "batch_size", sizes.batch)
        checks.require(self.num_splits <= 128, "num_splits > 128 not supported")
        check.slopes(self.alibi_slopes, sizes)

    def run(self) -> tuple[_Tensor, _Tensor]:
        """Output (batch, queries, heads, width) and log-sum-exp (batch, heads, queries) in FP32; no gradients.

        Raises RuntimeError in the package's words, torch.OutOfMemoryError.
        """
        with torch.no_grad():
            self.check()
            odd = -self.q.shape[3] % 8
            return self._run() if not odd else self._run_padded(odd)

    def _run_padded(self, odd: int) -> tuple[_Tensor, _Tensor]:
        """The package copies the whole cache if a head's width is not a multiple of 8, and copies it back."""
        tensors = (self.q, self.k_cache, self.v_cache, self.k, self.v)
        q, k_cache, v_cache, k, v = (None if x is None else functional.pad(x, [0, odd]) for x in tensors)
        assert q is not None
        assert k_cache is not None
        assert v_cache is not None
        output, sums = replace(self, q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v)._run()
        width = self.q.shape[3]
        if self.k is not None:
            self.k_cache.copy_(k_cache[..., :width])
            self.v_cache.copy_(v_cache[..., :width])
        return output[..., :width], sums

    def _run(self) -> tuple[_Tensor, _Tensor]:
        gpu, sizes = launching.gpu_of(self.q), self.sizes
        output = torch.empty_like(self.q)
        sums = torch.empty((sizes.batch, sizes.heads, sizes.queries), dtype=torch.float32, device=self.q.device)
        outside = self._outside() if gpu.values else None

        def compute() -> None:
            for index in range(sizes.batch):
                computed, logarithms = self._sequence(index)
                output[index].copy_(computed)
                sums[index].copy_(logarithms)

        swapped, window = sizes, self.window
        if sizes.queries == 1 and sizes.groups > 1 and max(self.window_size) < 0 and self.alibi_slopes is None:
            swapped = sizes._replace(queries=sizes.groups, heads=sizes.key_heads)
        number = launching.splits(gpu, swapped, self.num_splits)
        forced = self.k is not None or self.cache_batch_idx is not None or self.block_table is not None
        name = "flash_fwd_splitkv_kernel" if forced or number > 1 else "flash_fwd_kernel"
        lengths = [(swapped.queries, keys) for keys in self._lengths()]
        work = launching.attention_work(name, self.q, lengths, swapped, window)
        if self.k is not None:  # read, and written into the cache
            work = work._replace(bytes=work.bytes + 4 * self.k.nbytes)
        optional = (
            self.k, self.v, self.cache_seqlens, self.rotary_cos, self.rotary_sin, self.cache_batch_idx,
            self.cache_leftpad, self.block_table, self.alibi_slopes,
        )  # fmt: skip
        read = (self.q, self.k_cache, self.v_cache, *(tensor for tensor in optional if tensor is not None))
        written = (output, sums) if self.k is None else (output, sums, self.k_cache, self.v_cache)
        Launch(work, compute, read, written, launching.split_scratch(number, swapped), outside).run(gpu)
        launching.combine(gpu, number, swapped, output)
        return output, sums

    def _lengths(self) -> list[int]:
        """Keys of each sequence, new ones included; all that fit where no value is known."""
        sizes = self.sizes
        if self.cache_seqlens is None or not launching.gpu_of(self.q).values:
            return [sizes.keys] * sizes.batch
        with beneath():
            return [self._length(index) + self._new_keys for index in range(sizes.batch)]

    @property
    def _new_keys(self) -> int:
        return 0 if self.k is None else self.k.shape[1]

    def _outside(self) -> Exception | None:
        """A sequence that is too long for the cache, or None; the package itself refuses more than its pages hold."""
        most = self.sizes.keys
        with beneath():
            ends = [self._left(index) + self._length(index) for index in range(self.sizes.batch)]
        longest = max(ends) + self._new_keys
        if longest <= most:
            return None
        if self.block_table is not None:
            pages, rows = self.block_table.shape[1], self.k_cache.shape[1]
            new = " + seqlen_knew" if self.k is not None else ""
            raise RuntimeError(
                f"Paged KV cache: max(seqlens_k){new} (= {longest}) exceeds the capacity addressable by block_table "
                f"(max_num_blocks_per_seq * page_block_size = {pages * rows}). Allocate more columns in block_table, "
                "otherwise the kernel would index block_table out of bounds."
            )
        return IndexError(f"a sequence has {longest} keys, and the cache has space for {most}")

    # ---- beneath the modes -------------------------------------------------------------------------------------------

    def _length(self, index: int) -> int:
        """Keys of a sequence in the cache, without those that it leaves out in front."""
        length = self.sizes.keys if self.cache_seqlens is None else int(self.cache_seqlens[index])
        return max(0, length - self._left(index))

    def _left(self, index: int) -> int:
        return 0 if self.cache_leftpad is None else int(self.cache_leftpad[index])

    def _sequence(self, index: int) -> tuple[_Tensor, _Tensor]:
        """One sequence: its new keys go into the cache, then its queries see them."""
        query, before, left = self.q[index], self._length(index), self._left(index)
        if self.k is not None and self.v is not None:
            key, first = self.k[index], left + before
            if self.rotary_cos is not None and self.rotary_sin is not None:
                key = rotated(key, self.rotary_cos, self.rotary_sin, first, interleaved=self.rotary_interleaved)
                query = rotated(
                    query, self.rotary_cos, self.rotary_sin, first, interleaved=self.rotary_interleaved,
                    moves=not self.window.is_open,
                )  # fmt: skip
            self._append(self.k_cache, index, first, key)
            self._append(self.v_cache, index, first, self.v[index])
        places = range(left, min(left + before + self._new_keys, self.sizes.keys))
        slopes = self.alibi_slopes
        problem = Attention(
            query, self._keys(self.k_cache, index, places), self._keys(self.v_cache, index, places),
            scale=self.softmax_scale, window=self.window, softcap=self.softcap,
            slopes=slopes if slopes is None or slopes.dim() == 1 else slopes[index],
        )  # fmt: skip
        return problem.forward()

    def _append(self, cache: _Tensor, index: int, first: int, values: _Tensor) -> None:
        cache = cache.data  # a kernel's writes are not counted
        last = min(first + values.shape[0], self.sizes.keys)
        if self.block_table is None:
            cache[self._place(index), first:last].copy_(values[: last - first])
        else:
            at, rows = torch.arange(first, last), cache.shape[1]
            cache[self.block_table[index].long()[at // rows], at % rows] = values[: last - first]

    def _keys(self, cache: _Tensor, index: int, places: range) -> _Tensor:
        if self.block_table is not None:
            return batches.gathered(cache, self.block_table[index], places)
        return cache[self._place(index), places.start : places.stop]

    def _place(self, index: int) -> int:
        """The number of a sequence in the cache."""
        return index if self.cache_batch_idx is None else int(self.cache_batch_idx[index])
