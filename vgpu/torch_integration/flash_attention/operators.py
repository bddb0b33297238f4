"""FlashAttention-2's four operators in `torch.ops.flash_attn`, registered for CUDA tensors as the package does it.

Each takes q (batch, queries, heads, width) and k, v (batch, keys, heads of keys, width), or with lengths (tokens,
heads, width); 16-bit, a width that is a multiple of 8. Source: flash_attn_interface.py (names, shapes without values)
and flash_api.cpp, `mha_fwd`, `mha_varlen_fwd`, `mha_bwd`, `mha_varlen_bwd`. Not here: caches of keys and values
(`vgpu.torch_integration.flash_attention.cache`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vgpu.device.kernel_work import KernelWork
from vgpu.runtime.gpu import VirtualGPU
from vgpu.torch_integration.flash_attention import checks, launching
from vgpu.torch_integration.flash_attention.batches import Batch, dense, packed
from vgpu.torch_integration.flash_attention.checks import Checks, Sizes
from vgpu.torch_integration.flash_attention.dropout import DropoutMask, drawn_numbers
from vgpu.torch_integration.flash_attention.launching import Launch
from vgpu.torch_integration.flash_attention.problem import Attention, Window

_Tensor = torch.Tensor
_Results = tuple[_Tensor, _Tensor, _Tensor, _Tensor]
_OPTIONS = (
    "float dropout_p, float softmax_scale, bool causal, SymInt window_size_left{}, SymInt window_size_right{}, "
    "float softcap{}, Tensor? alibi_slopes{}"
)
_REQUIRED, _OPTIONAL = _OPTIONS.format("", "", "", ""), _OPTIONS.format("=-1", "=-1", "=0.0", "=None")
_LENGTHS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_GRADIENTS = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(a6!)? dq, Tensor(a7!)? dk, "
    "Tensor(a8!)? dv"
)
_SCHEMAS = (
    f"_flash_attn_forward(Tensor q, Tensor k, Tensor v, {_REQUIRED}, bool return_softmax) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    f"_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, {_LENGTHS}, {_OPTIONAL}, bool return_softmax=False, "
    "Tensor? block_table=None, Tensor? leftpad_k=None, Tensor? seqused_k=None, bool zero_tensors=False, "
    "SymInt num_splits=0) -> (Tensor, Tensor, Tensor, Tensor)",
    f"_flash_attn_backward({_GRADIENTS}, {_REQUIRED}, bool deterministic, Tensor? rng_state=None) -> Tensor",
    f"_flash_attn_varlen_backward({_GRADIENTS}, {_LENGTHS}, {_REQUIRED}, bool deterministic, Tensor? rng_state=None, "
    "bool zero_tensors=False) -> Tensor",
)
# Rows of a block of queries, to which temporary tensors are rounded.
_BLOCK_ROWS = 128
_SIGN = 1 << 63


@dataclass(frozen=True)
class _Options:
    """How a call computes its scores."""

    scale: float
    causal: bool
    left: int
    right: int
    softcap: float
    slopes: _Tensor | None
    dropout: float

    def window(self, sizes: Sizes) -> Window:
        # A single query sees everything, causal or not; with slopes the kernel for causal masks adds other biases.
        causal = self.causal and not (sizes.queries == 1 and self.slopes is None)
        return Window.of(self.left, self.right, sizes.keys, causal=causal)

    def attention(self, batch: Batch, index: int, random: tuple[int, int] | None) -> Attention:
        """The problem of one sequence, as far as the kernel's grid reaches."""
        query, key, value = batch.operands(index)
        slopes = self.slopes if self.slopes is None or self.slopes.dim() == 1 else self.slopes[index]
        mask = None if random is None else DropoutMask(*random, self.dropout, index, query.shape[1])
        window = self.window(batch.sizes)
        return Attention(
            query, key, value, scale=self.scale, window=window, softcap=self.softcap, slopes=slopes, mask=mask
        )


def _forward(
    q: _Tensor, k: _Tensor, v: _Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: _Tensor | None, return_softmax: bool,
) -> _Results:  # fmt: skip
    options = _Options(softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, dropout_p)
    q, k, v = contiguous(q), contiguous(k), contiguous(v)
    check = Checks(launching.machine())
    check.operands(q, k, v)
    sizes = Sizes(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3])
    checks.sizes_of_call(sizes)
    checks.options(softcap, dropout_p)
    checks.shape("k", k, "batch_size, seqlen_k, num_heads_k, head_size", *_key_shape(sizes))
    checks.shape("v", v, "batch_size, seqlen_k, num_heads_k, head_size", *_key_shape(sizes))
    checks.options(softcap, dropout_p, returns_softmax=return_softmax)
    check.slopes(alibi_slopes, sizes)
    sums = torch.empty((sizes.batch, sizes.heads, sizes.queries), dtype=torch.float32, device=q.device)
    return _run_forward(dense(q, k, v, sizes), options, sums, returns_softmax=return_softmax)


def _varlen_forward(
    q: _Tensor, k: _Tensor, v: _Tensor, cu_seqlens_q: _Tensor, cu_seqlens_k: _Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1,
    window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: _Tensor | None = None,
    return_softmax: bool = False, block_table: _Tensor | None = None, leftpad_k: _Tensor | None = None,
    seqused_k: _Tensor | None = None, zero_tensors: bool = False, num_splits: int = 0,
) -> _Results:  # fmt: skip
    options = _Options(softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, dropout_p)
    q, k, v = contiguous(q), contiguous(k), contiguous(v)
    check = Checks(launching.machine())
    check.operands(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    if block_table is not None:
        check.block_table(block_table)
        checks.page(k.shape[1])
    checks.options(softcap, dropout_p)
    batch = cu_seqlens_q.numel() - 1
    sizes = Sizes(batch, max_seqlen_q, max_seqlen_k, q.shape[1], k.shape[-2], q.shape[2])
    checks.sizes_of_call(sizes)
    if block_table is None:
        for name, tensor in (("k", k), ("v", v)):
            expected = (k.shape[0], sizes.key_heads, sizes.width)
            checks.shape(name, tensor, "total_k, num_heads_k, head_size", *expected)
    else:
        for name, tensor in (("k", k), ("v", v)):
            expected = (*k.shape[:2], sizes.key_heads, sizes.width)
            checks.shape(name, tensor, "num_blocks, page_block_size, num_heads_k, head_size", *expected)
        checks.shape("block_table", block_table, "batch_size, max_num_blocks_per_seq", batch, block_table.shape[1])
    checks.shape("cu_seqlens_q", cu_seqlens_q, "batch_size + 1", batch + 1)
    checks.shape("cu_seqlens_k", cu_seqlens_k, "batch_size + 1", batch + 1)
    checks.options(softcap, dropout_p, returns_softmax=return_softmax)
    if seqused_k is not None:
        check.integers("seqused_k", seqused_k, "batch_size", batch)
    if leftpad_k is not None:
        checks.require(block_table is None, "We don't support Paged KV and leftpad_k running at the same time yet")
        check.integers("leftpad_k", leftpad_k, "batch_size", batch)
    checks.require(block_table is None or num_splits <= 1, "num_splits > 1 is not supported for varlen paged KV")
    check.slopes(alibi_slopes, sizes)
    sums = torch.empty((sizes.heads, q.shape[0]), dtype=torch.float32, device=q.device)
    operands = packed(q, k, v, sizes, cu_seqlens_q, cu_seqlens_k, block_table, leftpad_k, seqused_k)
    return _run_forward(operands, options, sums, zeros=zero_tensors, returns_softmax=return_softmax, parts=num_splits)


def _run_forward(
    batch: Batch, options: _Options, sums: _Tensor, *, returns_softmax: bool, zeros: bool = False, parts: int = 0
) -> _Results:
    """Forward of both kinds: the results' memory, and the kernel."""
    query, sizes = batch.query, batch.sizes
    gpu = launching.gpu_of(query)
    output = torch.empty_like(query)
    if zeros:
        output.zero_()
        sums.fill_(-torch.inf)
    shape = (sizes.batch, sizes.heads, _rounded(sizes.queries), _rounded(sizes.keys)) if returns_softmax else (0,)
    probabilities = torch.empty(shape, dtype=query.dtype, device=query.device)
    state = torch.empty(2, dtype=torch.int64, device=query.device)

    def compute() -> None:
        random = _draw(gpu, sizes, options.dropout, state)
        if returns_softmax:
            probabilities.zero_()
        for index in range(sizes.batch):
            computed, logarithms = options.attention(batch, index, random).forward(
                probabilities[index] if returns_softmax else None
            )
            batch.put(output, index, computed)
            batch.put_rows(sums, index, logarithms)

    number, swapped = 1, _few_queries(batch, options)
    if options.dropout == 0.0 and (batch.is_dense or swapped is not sizes):
        number = launching.splits(gpu, swapped, parts)
    name = "flash_fwd_kernel" if number == 1 and not batch.is_paged else "flash_fwd_splitkv_kernel"
    shared = sizes.heads // swapped.heads
    lengths = [(queries * shared, keys) for queries, keys in batch.lengths()]
    window = options.window(sizes)
    work = launching.attention_work(name, query, lengths, swapped, window)
    written = (output, sums, state, probabilities)
    Launch(work, compute, batch.tensors, written, launching.split_scratch(number, swapped), batch.outside()).run(gpu)
    launching.combine(gpu, number, swapped, output)
    return output, sums, probabilities, state


def _few_queries(batch: Batch, options: _Options) -> Sizes:
    """A single query of several heads that share one of the keys: the heads become queries (flash_api.cpp)."""
    sizes = batch.sizes
    plain = options.left < 0 and options.right < 0 and options.dropout == 0.0 and options.slopes is None
    if sizes.queries != 1 or sizes.groups <= 1 or not plain:
        return sizes
    return sizes._replace(queries=sizes.groups, heads=sizes.key_heads)


def _draw(gpu: VirtualGPU, sizes: Sizes, dropout: float, state: _Tensor) -> tuple[int, int] | None:
    """Seed and offset of the dropout mask, which backward gets in `state`."""
    if dropout <= 0.0:
        return None
    seed, offset = gpu.generator.advance(drawn_numbers(sizes.batch, sizes.heads))
    state.copy_(torch.tensor([(seed + _SIGN) % (2 * _SIGN) - _SIGN, offset]))
    return seed, offset


def _backward(
    dout: _Tensor, q: _Tensor, k: _Tensor, v: _Tensor, out: _Tensor, softmax_lse: _Tensor, dq: _Tensor | None,
    dk: _Tensor | None, dv: _Tensor | None, dropout_p: float, softmax_scale: float, causal: bool,
    window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: _Tensor | None, deterministic: bool,
    rng_state: _Tensor | None = None,
) -> _Tensor:  # fmt: skip
    options = _Options(softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, dropout_p)
    dout, q, k, v, out = (contiguous(tensor) for tensor in (dout, q, k, v, out))
    check = Checks(launching.machine())
    check.operands(q, k, v, out=out, dout=dout, softmax_lse=softmax_lse)
    sizes = Sizes(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3])
    checks.sizes_of_call(sizes, backward=True)
    checks.options(softcap, dropout_p)
    for name, tensor in (("k", k), ("v", v)):
        checks.shape(name, tensor, "batch_size, seqlen_k, num_heads_k, head_size", *_key_shape(sizes))
    for name, tensor in (("out", out), ("dout", dout)):
        checks.shape(name, tensor, "batch_size, seqlen_q, num_heads, head_size", *q.shape)
    check.slopes(alibi_slopes, sizes)
    rows = _rounded(sizes.queries)
    product = torch.empty((sizes.batch, sizes.heads, rows), dtype=torch.float32, device=q.device)
    gradients = (dq, dk, dv)
    accumulated = sizes.batch * rows
    return _run_backward(
        dense(q, k, v, sizes), options, dout, out, softmax_lse, gradients, product, accumulated, rng_state,
        deterministic=deterministic,
    )  # fmt: skip


def _varlen_backward(
    dout: _Tensor, q: _Tensor, k: _Tensor, v: _Tensor, out: _Tensor, softmax_lse: _Tensor, dq: _Tensor | None,
    dk: _Tensor | None, dv: _Tensor | None, cu_seqlens_q: _Tensor, cu_seqlens_k: _Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: _Tensor | None, deterministic: bool,
    rng_state: _Tensor | None = None, zero_tensors: bool = False,
) -> _Tensor:  # fmt: skip
    options = _Options(softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, dropout_p)
    dout, q, k, v, out = (contiguous(tensor) for tensor in (dout, q, k, v, out))
    check = Checks(launching.machine())
    check.operands(
        q, k, v, out=out, dout=dout, softmax_lse=softmax_lse, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k
    )
    batch = cu_seqlens_q.numel() - 1
    sizes = Sizes(batch, max_seqlen_q, max_seqlen_k, q.shape[1], k.shape[1], q.shape[2])
    checks.sizes_of_call(sizes, backward=True)
    checks.options(softcap, dropout_p)
    for name, tensor in (("k", k), ("v", v)):
        checks.shape(name, tensor, "total_k, num_heads_k, head_size", k.shape[0], sizes.key_heads, sizes.width)
    for name, tensor in (("out", out), ("dout", dout)):
        checks.shape(name, tensor, "total_q, num_heads, head_size", *q.shape)
    checks.shape("cu_seqlens_q", cu_seqlens_q, "batch_size + 1", batch + 1)
    checks.shape("cu_seqlens_k", cu_seqlens_k, "batch_size + 1", batch + 1)
    check.slopes(alibi_slopes, sizes)
    rows = q.shape[0] + _BLOCK_ROWS * batch
    product = torch.empty((sizes.heads, rows), dtype=torch.float32, device=q.device)
    operands = packed(q, k, v, sizes, cu_seqlens_q, cu_seqlens_k)
    return _run_backward(
        operands, options, dout, out, softmax_lse, (dq, dk, dv), product, rows, rng_state,
        deterministic=deterministic, zeros=zero_tensors,
    )  # fmt: skip


def _run_backward(
    batch: Batch, options: _Options, dout: _Tensor, out: _Tensor, sums: _Tensor,
    gradients: Sequence[_Tensor | None], product: _Tensor, rows: int, state: _Tensor | None, *,
    deterministic: bool, zeros: bool = False,
) -> _Tensor:  # fmt: skip
    """Backward of both kinds. `rows` of FP32 sums for dQ are accumulated."""
    sizes, operands = batch.sizes, (batch.query, batch.key, batch.value)
    gpu = launching.gpu_of(batch.query)
    d_query, d_key, d_value = (
        torch.empty_like(tensor) if gradient is None else gradient
        for gradient, tensor in zip(gradients, operands, strict=True)
    )
    wide_key, wide_value = d_key, d_value
    if sizes.groups > 1:  # for each head of the queries; then they are added up
        shape = (*batch.key.shape[:-2], sizes.heads, sizes.width)
        wide_key, wide_value = (torch.empty(shape, dtype=dout.dtype, device=dout.device) for _ in range(2))
    if zeros:
        for tensor in (d_query, wide_key, wide_value, product):
            tensor.zero_()

    def compute() -> None:
        random = None
        if options.dropout > 0.0:
            if state is None:
                random = gpu.generator.advance(drawn_numbers(sizes.batch, sizes.heads))
            else:
                seed, offset = state.tolist()
                random = seed % (2 * _SIGN), offset
        for index in range(sizes.batch):
            problem = options.attention(batch, index, random)
            part = batch.rows(dout, index), batch.rows(out, index), batch.rows_of_sums(sums, index)
            computed = problem.backward(*part)
            batch.put(d_query, index, computed[0])
            batch.put_keys(wide_key, index, computed[1])
            batch.put_keys(wide_value, index, computed[2])
            delta = (part[0].float() * part[1].float()).sum(-1).T
            batch.put_products(product, index, delta)

    parts = -(-gpu.spec.multiprocessors // max(sizes.batch * sizes.heads, 1)) if deterministic else 1
    scratch = 4 * parts * rows * sizes.heads * launching.rounded_width(sizes.width)
    if deterministic:
        gpu.launch(KernelWork("aten::zero_", scratch))
    name = "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
    window = options.window(sizes)
    work = launching.attention_work(name, batch.query, batch.lengths(), sizes, window, backward=True)
    read = (*batch.tensors, dout, out, sums)
    Launch(work, compute, read, (d_query, wide_key, wide_value, product), [scratch], batch.outside()).run(gpu)
    if sizes.groups > 1:
        for narrow, wide in ((d_key, wide_key), (d_value, wide_value)):
            torch.sum(wide.unflatten(-2, (sizes.key_heads, sizes.groups)), -2, out=narrow)
    return product


def contiguous(tensor: _Tensor) -> _Tensor:
    """The package copies a tensor whose elements of a head are not neighbours."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _key_shape(sizes: Sizes) -> tuple[int, ...]:
    return sizes.batch, sizes.keys, sizes.key_heads, sizes.width


def _rounded(rows: int) -> int:
    return -(-rows // _BLOCK_ROWS) * _BLOCK_ROWS


# ---- shapes without values, for TorchDynamo and FakeTensorMode ------------------------------------------------------


def _shape_of_forward(q: _Tensor, k: _Tensor, v: _Tensor, *args: object, **kwargs: object) -> _Results:
    batch, queries, heads = q.shape[:3]
    return_softmax = kwargs.get("return_softmax", args[7] if len(args) > 7 else False)
    shape = (batch, heads, _rounded(queries), _rounded(k.shape[1])) if return_softmax else (0,)
    return _shapes(contiguous(q), (batch, heads, queries), shape)


def _shape_of_varlen_forward(
    q: _Tensor, k: _Tensor, v: _Tensor, cu_seqlens_q: _Tensor, cu_seqlens_k: _Tensor, max_seqlen_q: int,
    max_seqlen_k: int, *args: object, **kwargs: object,
) -> _Results:  # fmt: skip
    total, heads = q.shape[:2]
    return_softmax = kwargs.get("return_softmax", args[7] if len(args) > 7 else False)
    rows = (cu_seqlens_q.numel() - 1, heads, _rounded(max_seqlen_q), _rounded(max_seqlen_k))
    return _shapes(contiguous(q), (heads, total), rows if return_softmax else (0,))


def _shapes(query: _Tensor, sums: Sequence[int], probabilities: Sequence[int]) -> _Results:
    return (
        torch.empty_like(query),
        query.new_empty(sums, dtype=torch.float32),
        query.new_empty(probabilities),
        query.new_empty(2, dtype=torch.int64),
    )


def _shape_of_backward(dout: _Tensor, q: _Tensor, *args: object, **kwargs: object) -> _Tensor:
    return q.new_empty((q.shape[0], q.shape[2], _rounded(q.shape[1])), dtype=torch.float32)


def _shape_of_varlen_backward(dout: _Tensor, q: _Tensor, *args: object, **kwargs: object) -> _Tensor:
    lengths = kwargs.get("cu_seqlens_q", args[7] if len(args) > 7 else None)
    assert isinstance(lengths, _Tensor)
    rows = q.shape[0] + _BLOCK_ROWS * (lengths.numel() - 1)
    return q.new_empty((q.shape[1], rows), dtype=torch.float32)


_KERNELS: Sequence[Callable[..., Any]] = (_forward, _varlen_forward, _backward, _varlen_backward)
_SHAPES: Sequence[Callable[..., Any]] = (
    _shape_of_forward, _shape_of_varlen_forward, _shape_of_backward, _shape_of_varlen_backward,
)  # fmt: skip


@functools.cache
def register() -> torch.library.Library:
    """Make the operators known to PyTorch, once in a process."""
    library = torch.library.Library("flash_attn", "FRAGMENT")
    for schema, kernel, shape in zip(_SCHEMAS, _KERNELS, _SHAPES, strict=True):
        name = library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, kernel, "CUDA")
        torch.library.register_fake(f"flash_attn::{name}", shape, lib=library)
    return library


def functions() -> list[Callable[..., Any]]:
    """Functions that call them, in the order of the schemas, with parameters that `inspect` can see."""
    register()
    names = [schema.partition("(")[0] for schema in _SCHEMAS]
    return [_function(name, kernel) for name, kernel in zip(names, _KERNELS, strict=True)]


def _function(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    operator = getattr(torch.ops.flash_attn, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    call.__name__ = name
    call.__signature__ = inspect.signature(kernel)  # type: ignore[attr-defined]
    return call
