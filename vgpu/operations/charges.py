"""How much work an operation is: FLOPs, bytes and efficiency, from the shapes of its tensors.

FLOP formulas are those of `torch.utils.flop_counter` (a test compares them). Not here: seconds (`vgpu.cost`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from vgpu import cost
from vgpu.spec import Spec

DTYPE_NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name for name in cost.BYTES_PER_ELEMENT
}  # fmt: skip

# How many tensors one launch of a foreach kernel takes, by the number of tensor lists (MultiTensorApply.cuh).
_TENSORS_PER_LAUNCH = (110, 110, 64, 48, 36, 30)
# They read as many elements of their first tensor as they write, not all of it.
_GATHERS = {"embedding", "index_select", "gather", "index", "slice", "take", "_embedding_bag"}


class Product(NamedTuple):
    """A batch of matrix products (m, k) @ (k, n); `times` of them after each other count as one kernel's work.

    `attention` names the fused kernel that does them ("flash", "efficient", "cudnn"), whose efficiency is its own.
    `steps` of a recurrent layer depend on each other: each takes at least the shortest kernel.
    """

    batch: int
    m: int
    n: int
    k: int
    times: float = 1.0
    attention: str = ""
    backward: bool = False
    steps: int = 1

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k * self.times


def _mm(args: Sequence[Any], out: Any) -> Product:
    (m, k), n = args[0].shape, args[1].shape[1]
    return Product(1, m, n, k)


def _addmm(args: Sequence[Any], out: Any) -> Product:
    return _mm(args[1:], out)


def _bmm(args: Sequence[Any], out: Any) -> Product:
    (batch, m, k), n = args[0].shape, args[1].shape[2]
    return Product(batch, m, n, k)


def _baddbmm(args: Sequence[Any], out: Any) -> Product:
    return _bmm(args[1:], out)


def _vector(args: Sequence[Any], out: Any) -> Product:
    left = args[0] if args[0].dim() == 2 or len(args) < 3 or not isinstance(args[2], torch.Tensor) else args[1]
    rows, columns = (1, left.shape[0]) if left.dim() == 1 else left.shape
    return Product(1, rows, 1, columns)


def _convolution(args: Sequence[Any], out: Any) -> Product:
    inputs, weight, transposed = args[0], args[1], args[6]
    spatial = (inputs if transposed else out).shape[2:]
    groups = max(int(args[8]), 1)
    columns = weight.shape[0] if transposed else weight.shape[0] // groups
    reduced = weight.shape[1:].numel()
    batch = 1 if transposed else groups
    return Product(batch, inputs.shape[0] * prod(spatial), columns, reduced)


def _convolution_backward(args: Sequence[Any], out: Any) -> Product:
    gradient, inputs, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    forward = _convolution([inputs, weight, None, None, None, None, transposed, None, args[9]], gradient)
    return forward._replace(times=float(bool(mask[0])) + float(bool(mask[1])))


def _attention(kernel: str, causal_at: int) -> Callable[[Sequence[Any], Any], Product]:
    def product(args: Sequence[Any], out: Any) -> Product:
        query, key, value = args[:3]
        batch, heads, length, width = query.shape
        times = (1.0 + value.shape[-1] / width) * _causal_share(args, causal_at, length)
        return Product(batch * heads, length, key.shape[-2], width, times, kernel)

    return product


def _attention_backward(kernel: str, causal_at: int) -> Callable[[Sequence[Any], Any], Product]:
    def product(args: Sequence[Any], out: Any) -> Product:
        _, query, key, value = args[:4]
        batch, heads, length, width = query.shape
        times = (3.0 + 2.0 * value.shape[-1] / width) * _causal_share(args, causal_at, length)
        return Product(batch * heads, length, key.shape[-2], width, times, kernel, True)

    return product


def _causal_share(args: Sequence[Any], causal_at: int, length: int) -> float:
    """Fused kernels skip the blocks above the diagonal (Dao, "FlashAttention-2", 2023, section 3.1)."""
    return (length + 1) / (2 * length) if len(args) > causal_at and args[causal_at] else 1.0


def _recurrent(args: Sequence[Any], out: Any) -> Product:
    """`_cudnn_rnn`: in every layer and direction each step multiplies the input and the last hidden state."""
    data, weights, layers, sizes = args[0], args[1], args[9], args[14]
    ways = 2 if args[13] else 1
    steps = len(sizes) or data.shape[1 if args[10] else 0]
    rows = data.shape[:-1].numel()
    flops = sum(2.0 * rows * tensor.numel() for tensor in weights if tensor.dim() == 2)
    gates, hidden = weights[1].shape
    product = Product(1, max(rows // max(steps, 1), 1), gates, hidden, steps=steps * layers * ways)
    return product._replace(times=flops / max(product.flops, 1.0))


def _recurrent_backward(args: Sequence[Any], out: Any) -> Product:
    """Gradients of the inputs step by step, of the weights at once: twice the work."""
    forward = _recurrent((*args[:6], *args[10:19]), out)
    return forward._replace(times=2 * forward.times, steps=2 * forward.steps)


_PRODUCTS: dict[str, Callable[[Sequence[Any], Any], Product]] = {
    "mm": _mm, "addmm": _addmm, "_addmm_activation": _addmm, "bmm": _bmm, "baddbmm": _baddbmm,
    "mv": _vector, "addmv": _vector, "dot": _vector, "vdot": _vector,
    "convolution": _convolution, "convolution_overrideable": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention("", 99),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward("", 99),
    "_scaled_dot_product_flash_attention": _attention("flash", 4),
    "_scaled_dot_product_flash_attention_backward": _attention_backward("flash", 11),
    "_scaled_dot_product_efficient_attention": _attention("efficient", 6),
    "_scaled_dot_product_efficient_attention_backward": _attention_backward("efficient", 11),
    "_scaled_dot_product_cudnn_attention": _attention("cudnn", 6),
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward("cudnn", 14),
    "_cudnn_rnn": _recurrent, "_cudnn_rnn_backward": _recurrent_backward,
}  # fmt: skip
CONVOLUTIONS = {"convolution", "convolution_overrideable", "convolution_backward"}
# Operations that go through a cuBLAS handle, and so need its workspace.
BLAS = {"mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot"}
CUDNN = CONVOLUTIONS | {
    "native_batch_norm", "cudnn_batch_norm", "_batch_norm_with_update", "_cudnn_rnn", "_cudnn_rnn_backward",
}  # fmt: skip


def is_product(base: str) -> bool:
    """Whether an operation is a matrix product at heart."""
    return base in _PRODUCTS


def product_of(base: str, args: Sequence[Any], out: Any) -> Product:
    """The matrix product that such an operation is."""
    return _PRODUCTS[base](args, out)


def library_of(base: str) -> str:
    """The library whose handle an operation needs: "blas", "cudnn", or "" for none."""
    return "blas" if base in BLAS else "cudnn" if base in CUDNN else ""


def launches_of(base: str, args: Sequence[Any]) -> int:
    """Kernels that one foreach or fused operation launches."""
    lists = [item for item in args if isinstance(item, (list, tuple)) and item and isinstance(item[0], torch.Tensor)]
    if not lists:
        return 1
    return -(-len(lists[0]) // _TENSORS_PER_LAUNCH[min(len(lists), 5)])


def bytes_of(base: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Bytes read and written, each tensor once."""
    moved = 0
    try:
        for tensor in outputs:
            moved += tensor.nbytes
        if base in _GATHERS and inputs:
            moved *= 2
            inputs = inputs[1:]
        for tensor in inputs:
            moved += tensor.nbytes
    except RuntimeError:  # a sparse tensor, on the host
        return _bytes_of_sparse([*inputs, *outputs])
    return moved


def _bytes_of_sparse(tensors: Sequence[torch.Tensor]) -> int:
    """With sparse tensors among them: their indices and values."""
    moved = 0
    for tensor in tensors:
        if tensor.layout is torch.strided:
            moved += tensor.nbytes
        else:
            moved += tensor._nnz() * (tensor.element_size() + 8 * tensor.dim())
    return moved


# One block of threads computes such a tile of a product's result; an elementwise kernel handles four elements with
# each thread (CUTLASS's default tiles; aten/src/ATen/native/cuda/thread_constants.h, thread_work_size).
_TILE_ELEMENTS = 128 * 128
_ELEMENTS_PER_THREAD = 4


def fills(spec: Spec, product: Product | None, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a kernel's blocks take at least half of the multiprocessors, so that no equal one fits beside it."""
    if product is not None:
        tiles = product.batch * product.m * product.n / _TILE_ELEMENTS
        return 2 * tiles >= spec.multiprocessors
    threads = max((tensor.numel() for tensor in tensors), default=0) / _ELEMENTS_PER_THREAD
    resident = 1024 if spec.compute_capability == (7, 5) else 2048
    return 2 * threads >= spec.multiprocessors * resident


def product_seconds(spec: Spec, product: Product, dtype: str, moved: int, *, tf32: bool) -> float:
    """Device seconds of a product whose kernel moves `moved` bytes."""
    if product.attention:
        efficiency = cost.attention_efficiency(
            spec, product.attention, product.batch, product.m, backward=product.backward
        )
    else:
        efficiency = cost.product_efficiency(
            spec, product.m, product.n, product.k, batch=product.batch, dtype=dtype, tf32=tf32
        )
    seconds = cost.kernel_seconds(spec, flops=product.flops, bytes=moved, dtype=dtype, tf32=tf32, efficiency=efficiency)
    return max(seconds, product.steps * spec.minimum_kernel_seconds)
