"""Tasks 6.4 and 6.5: flash attention in kernels of your own, forward and backward.

Q, K and V are [batch, heads, length, head_dim], of one dtype (float32 or float16), with as many queries as keys; scores
are Q K^T / sqrt(head_dim), their softmax over the keys weighs V. With `causal=True` query i sees the keys 0 to i.
Lengths may be odd; head_dim is 16, 32, 64 or 128.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

HEAD_DIMS = (16, 32, 64, 128)

# --- solution only ---
_TILE_BYTES = 8192
"""Of a tile of queries or keys: backward holds some four of them in shared memory, of which a T4 has 64 KiB."""


@triton.jit
def _tile(base_ptr, rows, length, HEAD_DIM: tl.constexpr):  # noqa: N803
    """These rows of a matrix of one head; zeros beyond its end."""
    places = rows[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    return tl.load(base_ptr + places, mask=rows[:, None] < length, other=0.0)


@triton.jit
def _keep(base_ptr, tile, rows, length, HEAD_DIM: tl.constexpr):  # noqa: N803
    places = rows[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(base_ptr + places, tile.to(base_ptr.dtype.element_ty), mask=rows[:, None] < length)


@triton.jit
def _scores(query, key, rows, columns, length, scale, CAUSAL: tl.constexpr):  # noqa: N803
    """Of queries and keys, minus infinity where a query sees nothing."""
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    seen = columns[None, :] < length
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    return tl.where(seen, scores, -float("inf"))


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, out_ptr, log_sum_ptr, scale, length,
    HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr,  # noqa: N803
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    head = tl.program_id(1).to(tl.int64) * length
    rows = first + tl.arange(0, ROWS)
    query = _tile(q_ptr + head * HEAD_DIM, rows, length, HEAD_DIM)
    largest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS, HEAD_DIM), tl.float32)
    end = tl.minimum(first + ROWS, length) if CAUSAL else length
    for start in range(0, end, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        key = _tile(k_ptr + head * HEAD_DIM, columns, length, HEAD_DIM)
        value = _tile(v_ptr + head * HEAD_DIM, columns, length, HEAD_DIM)
        scores = _scores(query, key, rows, columns, length, scale, CAUSAL)
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        correction = tl.exp(largest - larger)
        weights = tl.exp(scores - larger[:, None])
        total = total * correction + tl.sum(weights, axis=1)
        weighted = weighted * correction[:, None]
        weighted += tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        largest = larger
    _keep(out_ptr + head * HEAD_DIM, weighted / total[:, None], rows, length, HEAD_DIM)
    tl.store(log_sum_ptr + head + rows, largest + tl.log(total), mask=rows < length)


@triton.jit
def _backward_of_keys(
    q_ptr, k_ptr, v_ptr, gradient_ptr, log_sum_ptr, product_ptr,
    d_key_ptr, d_value_ptr, scale, length,
    HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr,  # noqa: N803
):  # fmt: skip
    first = tl.program_id(0) * COLUMNS
    head = tl.program_id(1).to(tl.int64) * length
    columns = first + tl.arange(0, COLUMNS)
    key = _tile(k_ptr + head * HEAD_DIM, columns, length, HEAD_DIM)
    value = _tile(v_ptr + head * HEAD_DIM, columns, length, HEAD_DIM)
    d_key = tl.zeros((COLUMNS, HEAD_DIM), tl.float32)
    d_value = tl.zeros((COLUMNS, HEAD_DIM), tl.float32)
    begin = first // ROWS * ROWS if CAUSAL else 0
    for start in range(begin, length, ROWS):
        rows = start + tl.arange(0, ROWS)
        query = _tile(q_ptr + head * HEAD_DIM, rows, length, HEAD_DIM)
        gradient = _tile(gradient_ptr + head * HEAD_DIM, rows, length, HEAD_DIM)
        # Beyond the end the log of the sum is infinite, and so every weight is 0.
        log_sum = tl.load(log_sum_ptr + head + rows, mask=rows < length, other=float("inf"))
        product = tl.load(product_ptr + head + rows, mask=rows < length, other=0.0)
        weights = tl.exp(_scores(query, key, rows, columns, length, scale, CAUSAL) - log_sum[:, None])
        d_value += tl.dot(tl.trans(weights.to(gradient.dtype)), gradient, input_precision="ieee")
        d_weights = tl.dot(gradient, tl.trans(value), input_precision="ieee")
        d_scores = weights * (d_weights - product[:, None]) * scale
        d_key += tl.dot(tl.trans(d_scores.to(query.dtype)), query, input_precision="ieee")
    _keep(d_key_ptr + head * HEAD_DIM, d_key, columns, length, HEAD_DIM)
    _keep(d_value_ptr + head * HEAD_DIM, d_value, columns, length, HEAD_DIM)


@triton.jit
def _backward_of_queries(
    q_ptr, k_ptr, v_ptr, gradient_ptr, log_sum_ptr, product_ptr,
    d_query_ptr, scale, length,
    HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr,  # noqa: N803
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    head = tl.program_id(1).to(tl.int64) * length
    rows = first + tl.arange(0, ROWS)
    query = _tile(q_ptr + head * HEAD_DIM, rows, length, HEAD_DIM)
    gradient = _tile(gradient_ptr + head * HEAD_DIM, rows, length, HEAD_DIM)
    log_sum = tl.load(log_sum_ptr + head + rows, mask=rows < length, other=float("inf"))
    product = tl.load(product_ptr + head + rows, mask=rows < length, other=0.0)
    d_query = tl.zeros((ROWS, HEAD_DIM), tl.float32)
    end = tl.minimum(first + ROWS, length) if CAUSAL else length
    for start in range(0, end, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        key = _tile(k_ptr + head * HEAD_DIM, columns, length, HEAD_DIM)
        value = _tile(v_ptr + head * HEAD_DIM, columns, length, HEAD_DIM)
        weights = tl.exp(_scores(query, key, rows, columns, length, scale, CAUSAL) - log_sum[:, None])
        d_weights = tl.dot(gradient, tl.trans(value), input_precision="ieee")
        d_scores = weights * (d_weights - product[:, None]) * scale
        d_query += tl.dot(d_scores.to(key.dtype), key, input_precision="ieee")
    _keep(d_query_ptr + head * HEAD_DIM, d_query, rows, length, HEAD_DIM)


def _side(tensor: Tensor) -> int:
    """Rows of a tile."""
    return min(64, _TILE_BYTES // (tensor.shape[-1] * tensor.element_size()))


class _Attention(torch.autograd.Function):
    """FlashAttention-2: a program for each tile of queries, and in backward one for each tile of keys as well."""

    @staticmethod
    def forward(ctx: Any, Q: Tensor, K: Tensor, V: Tensor, causal: bool) -> Tensor:  # noqa: N803
        query, key, value = (tensor.contiguous() for tensor in (Q, K, V))
        batch, heads, length, head_dim = Q.shape
        out = torch.empty_like(query)
        log_sum = torch.empty((batch, heads, length), dtype=torch.float32, device=Q.device)
        side = _side(query)
        _forward[(triton.cdiv(length, side), batch * heads)](
            query, key, value, out, log_sum, head_dim**-0.5, length,
            HEAD_DIM=head_dim, ROWS=side, COLUMNS=side, CAUSAL=causal,
        )  # fmt: skip
        ctx.save_for_backward(query, key, value, out, log_sum)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        query, key, value, out, log_sum = ctx.saved_tensors
        gradient = gradients[0].contiguous()  # that of a sum has strides of 0
        batch, heads, length, head_dim = query.shape
        product = (gradient.float() * out.float()).sum(-1)
        d_query, d_key, d_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        operands = (query, key, value, gradient, log_sum, product)
        side, scale = _side(query), head_dim**-0.5
        sizes: dict[str, Any] = {"HEAD_DIM": head_dim, "ROWS": side, "COLUMNS": side, "CAUSAL": ctx.causal}
        grid = (triton.cdiv(length, side), batch * heads)
        _backward_of_keys[grid](*operands, d_key, d_value, scale, length, **sizes)
        _backward_of_queries[grid](*operands, d_query, scale, length, **sizes)
        return d_query, d_key, d_value, None


def _checked(Q: Tensor, K: Tensor, V: Tensor) -> None:  # noqa: N803
    if Q.ndim != 4 or Q.shape != K.shape or Q.shape != V.shape:
        raise ValueError(f"Q, K and V must have one shape of four sides: {Q.shape}, {K.shape}, {V.shape}")
    if Q.dtype not in (torch.float32, torch.float16) or not Q.dtype == K.dtype == V.dtype:
        raise ValueError(f"Q, K and V must all be float32, or all be float16: {Q.dtype}, {K.dtype}, {V.dtype}")
    if Q.shape[-1] not in HEAD_DIMS:
        raise ValueError(f"head_dim is one of {HEAD_DIMS}, not {Q.shape[-1]}")


# --- end ---


def flash_attention(Q: Tensor, K: Tensor, V: Tensor, *, causal: bool = False) -> Tensor:  # noqa: N803
    """Attention in tiles: forward by one Triton kernel, backward by as few as you like, however long the inputs are.

    No tensor of length x length elements is made in forward or backward, and each program writes what no other one
    touches: the programs of a grid run in any order, or at once. (An atomic addition is one access; adding by a load
    and a store is two.) With `causal`, tiles that no query sees are left out, in forward and backward. No program
    reaches outside of its tensors. Sums and the softmax are computed in float32; float32 operands are multiplied in
    full precision, not in TF32. Scores may be large: no exponential overflows where the largest score so far is taken
    off first.

    Args:
        Q, K, V: see the module; on a GPU. They may be views with any strides, and are left as they are.
        causal: whether a query sees no later key.

    Returns:
        [batch, heads, length, head_dim] in the dtype of the inputs, differentiable. The gradient that comes to it may
        have any strides; that of a sum has strides of 0.

    Raises:
        ValueError: shapes or dtypes differ, there are not four sides, or head_dim or dtype is none of the module's.

    Source: T. Dao 2023, "FlashAttention-2" (arXiv:2307.08691), algorithms 1 and 2; Triton tutorials, "Fused Attention".
    """
    # TODO(task 6.4):
    # The lines belong into kernels and an autograd.Function next to this one.
    # 1. Refuse arguments that make no sense.
    # 2. Forward: a program for each tile of queries of each head, and a loop over tiles of keys: the largest score so
    #    far, the sum of exp(score - largest), the weighted sum of values, all three corrected by each further tile.
    # 3. Which keys lie beyond the end, and which are not seen? With a causal mask: where does the loop end?
    # 4. Keep the log of the sum for each query.
    # TODO(task 6.5):
    # 5. Backward: compute the weights of a tile again. A tile of keys collects its gradient from all queries, a tile of
    #    queries from all keys: how many kernels is that, if nobody writes into another one's tile?
    # --- solution: task 6.4 ---
    _checked(Q, K, V)
    output: Tensor = _Attention.apply(Q, K, V, causal)
    return output
    # --- end ---
