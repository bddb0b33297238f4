"""Which matrix product an ATen operation is at heart, from the shapes of its tensors.

FLOP formulas are those of `torch.utils.flop_counter` (a test compares them). Not here: convolutions
(`vgpu.runtime.operations.convolutions`), and what a product costs (`vgpu.device.cost`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vgpu.device.kernel_work import Product
from vgpu.runtime.operations import cuda_dtypes


def mm(args: Sequence[Any], out: Any) -> Product:
    """`mm`: (m, k) @ (k, n)."""
    (m, k), n = args[0].shape, args[1].shape[1]
    return Product(1, m, n, k)


def addmm(args: Sequence[Any], out: Any) -> Product:
    """`addmm`: the same after the matrix that is added."""
    return mm(args[1:], out)


def bmm(args: Sequence[Any], out: Any) -> Product:
    """`bmm`: (batch, m, k) @ (batch, k, n)."""
    (batch, m, k), n = args[0].shape, args[1].shape[2]
    return Product(batch, m, n, k)


def baddbmm(args: Sequence[Any], out: Any) -> Product:
    """`baddbmm`: the same after the matrices that are added."""
    return bmm(args[1:], out)


def vector(args: Sequence[Any], out: Any) -> Product:
    """Products with a vector, of a vector or a matrix: `dot`, `mv`, `addmv`."""
    left = args[0] if args[0].dim() == 2 or len(args) < 3 or not isinstance(args[2], torch.Tensor) else args[1]
    rows, columns = (1, left.shape[0]) if left.dim() == 1 else left.shape
    return Product(1, rows, 1, columns)


def attention(kernel: str, causal_at: int | None) -> Callable[[Sequence[Any], Any], Product]:
    """Both products of attention by a fused kernel; `causal_at` is the place of `is_causal`."""

    def product(args: Sequence[Any], out: Any) -> Product:
        query, key, value = args[:3]
        batch, heads, length, width = query.shape
        causal = _is_causal(args, causal_at)
        times = (1.0 + value.shape[-1] / width) * _causal_share(causal, length)
        return Product(batch * heads, length, key.shape[-2], width, times, kernel, causal=causal)

    return product


def attention_backward(kernel: str, causal_at: int | None) -> Callable[[Sequence[Any], Any], Product]:
    """The five products of its backward."""

    def product(args: Sequence[Any], out: Any) -> Product:
        _, query, key, value = args[:4]
        batch, heads, length, width = query.shape
        causal = _is_causal(args, causal_at)
        times = (3.0 + 2.0 * value.shape[-1] / width) * _causal_share(causal, length)
        return Product(batch * heads, length, key.shape[-2], width, times, kernel, True, causal)

    return product


def filled(tensor: torch.Tensor) -> float:
    """The share of a sparse tensor's places that hold a value."""
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
    return values.numel() / max(tensor.numel(), 1)


def _is_causal(args: Sequence[Any], causal_at: int | None) -> bool:
    return causal_at is not None and len(args) > causal_at and bool(args[causal_at])


def _causal_share(causal: bool, length: int) -> float:
    """Fused kernels skip the blocks above the diagonal (Dao, "FlashAttention-2", 2023, section 3.1)."""
    return (length + 1) / (2 * length) if causal else 1.0


def recurrent(args: Sequence[Any], out: Any) -> Product:
    """`_cudnn_rnn`: in every layer and direction each step multiplies the input and the last hidden state."""
    data, weights, layers, sizes = args[0], args[1], args[9], args[14]
    ways = 2 if args[13] else 1
    steps = len(sizes) or data.shape[1 if args[10] else 0]
    rows = data.shape[:-1].numel()
    flops = sum(2.0 * rows * tensor.numel() for tensor in weights if tensor.dim() == 2)
    gates, hidden = weights[1].shape
    product = Product(1, max(rows // max(steps, 1), 1), gates, hidden, steps=steps * layers * ways)
    return product._replace(times=flops / max(product.flops, 1.0))


def recurrent_backward(args: Sequence[Any], out: Any) -> Product:
    """Gradients of the inputs step by step, of the weights at once: twice the work."""
    forward = recurrent((*args[:6], *args[10:19]), out)
    return forward._replace(times=2 * forward.times, steps=2 * forward.steps)


def check_int_mm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises RuntimeError for the sizes that `_int_mm_out_cuda` does not take (cuda/Blas.cpp)."""
    left, right = args[:2]
    if left.dim() != 2 or right.dim() != 2:
        return  # the CPU's words are the same
    if left.dtype != torch.int8 or right.dtype != torch.int8:
        other = next(tensor for tensor in (left, right) if tensor.dtype != torch.int8)
        raise RuntimeError(f"expected scalar type Char but found {cuda_dtypes.DTYPE_NAMES[other.dtype]}")
    if left.size(0) <= 16:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {left.size(0)}")
    for name, size in (("self.size(1)", left.size(1)), ("mat2.size(1)", right.size(1))):
        if size == 0 or size % 8:
            raise RuntimeError(f"{name} needs to be greater than 0 and a multiple of 8, but got {size}")
