"""How fast fused attention kernels are: products on tensor cores, exponentials, and rows that fill and drain blocks.

Constants were fitted to published measurements (benchmarks/published). Not here: attention by single operations, which
are products and a softmax (`vgpu.device.cost`).
"""

from __future__ import annotations

import math

from vgpu.device.cost import attained_ratio, peak_flops
from vgpu.device.spec import Spec

# What a fused attention kernel does for one entry of the attention matrix: products for its head (multiplications and
# additions by element of width, forward and backward), and a softmax.
_ATTENTION_FLOPS = (4, 10)
# Exponentials that a multiprocessor's special function units take in a clock cycle, and 16-bit operations of its tensor
# cores by `mma.sync`, the instruction of Ampere: later tensor cores are faster by other instructions only, which
# FlashAttention-2 does not use. Both: CUDA C++ Programming Guide, arithmetic instructions; NVIDIA A100 whitepaper.
_EXPONENTIALS_PER_CYCLE, _MMA_SYNC_FLOPS_PER_CYCLE = 16.0, 2048.0
# The backward pass adds up the gradients of queries with atomic additions: its products' share of the forward's rate.
# Fitted to benchmarks/published.
_ATTENTION_BACKWARD = 0.8
# cuDNN's kernels make products of one block during another's softmax (J. Shah et al., "FlashAttention-3", 2024, section
# 3.1, for how): exponentials that an entry's softmax counts for there. Fitted to benchmarks/published.
_OVERLAPPED_EXPONENTIALS = 2.0
# Share of the peak that CUTLASS's kernel (xFormers) reaches on long sequences with heads of width 128, (forward,
# backward), by the GPU's major compute capability (the next lower one holds for others): T. Dao, "FlashAttention-2"
# (2023), section 4.1, for the A100; others are modelled. Narrow heads leave less of it.
_EFFICIENT = {7: (0.35, 0.25), 8: (0.35, 0.25), 9: (0.20, 0.15)}
_EFFICIENT_NARROW = 0.88
FUSED = frozenset(("flash", "efficient", "cudnn"))
# Rows of queries at which half of that is reached: blocks fill and drain. A causal mask leaves half as many keys to a
# row, and uneven blocks: more of the same. Fitted to benchmarks/published.
_ATTENTION_ROWS, _CAUSAL_ROWS = 100, 180


def peak(spec: Spec, kernel: str, dtype: str) -> str:
    """Precision whose rate bounds a fused kernel, before it is divided by `products_of`."""
    return "tf32" if kernel == "efficient" and dtype == "float32" and "tf32" in spec.peak_flops else dtype


def products_of(kernel: str, dtype: str, spec: Spec) -> int:
    """Products on tensor cores for one of the operands' precision: FP32 is split into three of TF32 (the
    memory-efficient kernel from compute capability 8 on: CUTLASS's `OpMultiplyAddFastF32`, gemm_kernel_utils.h).
    """
    return 3 if peak(spec, kernel, dtype) != dtype else 1


def efficiency(
    spec: Spec,
    kernel: str,
    rows: int,
    width: int,
    *,
    dtype: str = "float16",
    backward: bool = False,
    causal: bool = False,
) -> float:
    """Ratio of the peak that a fused attention kernel reaches on `rows` queries with heads of `width` elements.

    An entry of the attention matrix costs its products, at the rate of the best ones (`attained_ratio`), and its
    exponential: after each other in FlashAttention-2, overlapped in cuDNN's kernels. So wide heads come closer to the
    peak than narrow ones, and cards with few tensor cores for their special function units closer than others.
    """
    filled = rows / (rows + _ATTENTION_ROWS) * (rows / (rows + _CAUSAL_ROWS) if causal else 1.0)
    if kernel == "efficient":
        major = max((known for known in _EFFICIENT if known <= spec.compute_capability[0]), default=min(_EFFICIENT))
        return _EFFICIENT[major][backward] * (1.0 if width > 64 else _EFFICIENT_NARROW) * filled
    flops = _ATTENTION_FLOPS[backward] * width
    # Clock cycles of a multiprocessor for one entry.
    ideal = flops * spec.multiprocessors * spec.clock_hertz / peak_flops(spec, dtype)
    rate = attained_ratio(spec, dtype) * (_ATTENTION_BACKWARD if backward else 1.0)
    if kernel == "flash":
        taken = max(ideal, flops / _MMA_SYNC_FLOPS_PER_CYCLE) / rate + 1 / _EXPONENTIALS_PER_CYCLE
    else:
        taken = math.hypot(ideal / rate, _OVERLAPPED_EXPONENTIALS / _EXPONENTIALS_PER_CYCLE)
    return ideal / taken * filled
