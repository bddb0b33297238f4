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
    """A batch of matrix products (m, k) @ (k, n); `times` of them after each other count as one kernel's work."""

    batch: int
    m: int
    n: int
    k: int
    times: float = 1.0

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


def _attention(args: Sequence[Any], out: Any) -> Product:
    query, key, value = args[:3]
    batch, heads, length, width = query.shape
    return Product(batch * heads, length, key.shape[-2], width, times=1.0 + value.shape[-1] / width)


def _attention_backward(args: Sequence[Any], out: Any) -> Product:
    _, query, key, value = args[:4]
    batch, heads, length, width = query.shape
    return Product(batch * heads, length, key.shape[-2], width, times=3.0 + 2.0 * value.shape[-1] / width)


_PRODUCTS: dict[str, Callable[[Sequence[Any], Any], Product]] = {
    "mm": _mm, "addmm": _addmm, "_addmm_activation": _addmm, "bmm": _bmm, "baddbmm": _baddbmm,
    "mv": _vector, "addmv": _vector, "dot": _vector, "vdot": _vector,
    "convolution": _convolution, "convolution_overrideable": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}  # fmt: skip
CONVOLUTIONS = {"convolution", "convolution_overrideable", "convolution_backward"}
# Operations that go through a cuBLAS handle, and so need its workspace.
BLAS = {"mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot"}
CUDNN = CONVOLUTIONS | {"native_batch_norm", "cudnn_batch_norm", "_batch_norm_with_update"}


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
    for tensor in outputs:
        moved += tensor.nbytes
    if base in _GATHERS and inputs:
        moved *= 2
        inputs = inputs[1:]
    for tensor in inputs:
        moved += tensor.nbytes
    return moved


def product_seconds(spec: Spec, product: Product, dtype: str, moved: int, *, tf32: bool) -> float:
    """Device seconds of a product whose kernel moves `moved` bytes."""
    efficiency = cost.product_efficiency(
        spec, product.m, product.n, product.k, batch=product.batch, dtype=dtype, tf32=tf32
    )
    return cost.kernel_seconds(spec, flops=product.flops, bytes=moved, dtype=dtype, tf32=tf32, efficiency=efficiency)
