"""How much work an operation is: FLOPs, bytes and efficiency, from the shapes of its tensors.

Not here: which product an operation is (`vgpu.operations.products`), what passes through memory
(`vgpu.operations.traffic`), and seconds (`vgpu.cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vgpu import cost
from vgpu.operations import convolutions
from vgpu.operations.products import Product
from vgpu.spec import Spec

DTYPE_NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name for name in cost.BYTES_PER_ELEMENT
}  # fmt: skip

# How many tensors one launch of a foreach kernel takes, by the number of tensor lists (MultiTensorApply.cuh).
_TENSORS_PER_LAUNCH = (110, 110, 64, 48, 36, 30)


def launches_of(args: Sequence[Any]) -> int:
    """Kernels that one foreach or fused operation launches."""
    lists = [item for item in args if isinstance(item, (list, tuple)) and item and isinstance(item[0], torch.Tensor)]
    if not lists:
        return 1
    return -(-len(lists[0]) // _TENSORS_PER_LAUNCH[min(len(lists), 5)])


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


def product_seconds(spec: Spec, product: Product, dtype: str, moved: int, *, tf32: bool, planar: int = 0) -> float:
    """Device seconds of a product whose kernel moves `moved` bytes, and `planar` bytes to change operands' layout."""
    m, n, k = product.m, product.n, product.k
    if product.kernel in cost.FUSED_ATTENTION:
        efficiency = cost.attention_efficiency(
            spec, product.kernel, m, k, backward=product.backward, causal=product.causal
        )
        share = 1.0
    elif product.kernel == convolutions.DEPTHWISE:
        efficiency, share = cost.DEPTHWISE_RATIO, 1.0
        dtype, tf32 = "float32", False
    else:
        efficiency = cost.product_efficiency(spec, m, n, k, batch=product.batch, dtype=dtype, tf32=tf32)
        share = cost.product_traffic_share(m, n, k)
        tensor_cores = cost.uses_tensor_cores(spec, dtype, tf32=tf32)
        if product.kernel == convolutions.WINOGRAD and not tensor_cores:
            efficiency *= cost.WINOGRAD_GAIN
        if not tensor_cores:
            planar = 0
    seconds = cost.kernel_seconds(
        spec, flops=product.flops, bytes=moved, dtype=dtype, tf32=tf32, efficiency=efficiency, traffic_share=share
    )
    if planar:
        width = cost.BYTES_PER_ELEMENT.get(dtype, 4)
        seconds += cost.traffic_seconds(spec, planar, cost.TRANSPOSITION_SHARE.get(width, 1.0))
    return max(seconds, product.steps * spec.minimum_kernel_seconds)
