"""Single kernels: products, attention, elementwise operations, copies, collectives."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import vgpu
from benchmarks.published.timing import device_seconds, dtype_of, wall_seconds

Sizes = Mapping[str, Any]
_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# A backward pass of attention has two and a half times the products of its forward pass.
_BOTH_PASSES = 3.5
_MASKED = -10000.0


def _product_tflops(m: int, n: int, k: int, dtype: torch.dtype) -> float:
    left, right = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((m, k), (k, n)))
    return 2e-12 * m * n * k / device_seconds(lambda: torch.mm(left, right))


def matmul(sizes: Sizes, precision: str) -> float:
    """TFLOP/s of one product (m, k) @ (k, n)."""
    return _product_tflops(sizes["m"], sizes["n"], sizes["k"], dtype_of(precision))


def matmul_best(sizes: Sizes, precision: str) -> float:
    """TFLOP/s of the fastest of several square products."""
    return max(_product_tflops(size, size, size, dtype_of(precision)) for size in sizes["sizes"])


def _attention_tflops(sizes: Sizes, call: Callable[[], Tensor]) -> float:
    """Useful TFLOP/s: half of the products if causal, whatever the kernel does."""
    batch, heads, rows, width = (sizes[name] for name in ("batch", "heads", "seq", "dim"))
    flops = 4e-12 * batch * heads * rows * rows * width / (2 if sizes["causal"] else 1)
    with torch.no_grad():
        forward = device_seconds(call)
    if sizes["mode"] == "fwd":
        return float(flops / forward)
    result = call()
    gradient = torch.randn_like(result)
    backward = device_seconds(lambda: result.backward(gradient, retain_graph=True))
    if sizes["mode"] == "bwd":
        return float((_BOTH_PASSES - 1) * flops / backward)
    return float(_BOTH_PASSES * flops / (forward + backward))


def sdpa(sizes: Sizes, precision: str) -> float:
    """TFLOP/s of `scaled_dot_product_attention` by one fused kernel."""
    shape = sizes["batch"], sizes["heads"], sizes["seq"], sizes["dim"]
    query, key, value = (
        torch.randn(shape, device="cuda", dtype=dtype_of(precision), requires_grad=True) for _ in range(3)
    )

    def call() -> Tensor:
        with sdpa_kernel([_BACKENDS[sizes["kernel"]]]):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=sizes["causal"])

    return _attention_tflops(sizes, call)


def attention_eager(sizes: Sizes, precision: str) -> float:
    """TFLOP/s of attention kernel by kernel: Dao-AILab/flash-attention, benchmarks, `attention_pytorch`."""
    batch, heads, rows, width = (sizes[name] for name in ("batch", "heads", "seq", "dim"))
    packed = torch.randn(batch, rows, 3, heads, width, device="cuda", dtype=dtype_of(precision), requires_grad=True)

    def call() -> Tensor:
        query, key, value = packed.unbind(dim=2)
        query = query.permute(0, 2, 1, 3).reshape(batch * heads, rows, width)
        key = key.permute(0, 2, 3, 1).reshape(batch * heads, width, rows)
        scores = torch.empty(batch * heads, rows, rows, dtype=packed.dtype, device="cuda")
        scores = torch.baddbmm(scores, query, key, beta=0, alpha=1 / math.sqrt(width)).view(batch, heads, rows, rows)
        if sizes["causal"]:
            above = torch.triu(torch.full((rows, rows), _MASKED, device="cuda"), 1)
            scores = scores + above.to(scores.dtype)
        weights = functional.dropout(torch.softmax(scores, dim=-1), 0.0)
        mixed: Tensor = torch.einsum("bhts,bshd->bthd", weights, value)
        return mixed

    return _attention_tflops(sizes, call)


def elementwise_bandwidth(sizes: Sizes, precision: str) -> float:
    """GB/s of `x * 1.2` or of a copy, one read and one write of 4 bytes for each element."""
    source = torch.randn(sizes["elements"], device="cuda")
    target = torch.empty_like(source)
    calls: dict[str, Callable[[], object]] = {"mul": lambda: source * 1.2, "copy": lambda: target.copy_(source)}
    return 8e-9 * source.numel() / device_seconds(calls[sizes["op"]], 50)


def transfer_gbs(sizes: Sizes, precision: str) -> float:
    """GB/s of a copy between host and device."""
    host = torch.empty(sizes["bytes"], dtype=torch.uint8, pin_memory=sizes["pinned"])
    device = torch.empty(sizes["bytes"], dtype=torch.uint8, device="cuda")
    target, source = (device, host) if sizes["to_gpu"] else (host, device)
    return float(1e-9 * sizes["bytes"] / wall_seconds(lambda: target.copy_(source, non_blocking=sizes["pinned"]), 5))


def allreduce_busbw(sizes: Sizes, precision: str) -> float:
    """Bus bandwidth in GB/s, as nccl-tests counts it (doc/PERFORMANCE.md)."""
    name, ranks = sizes.get("op", "all_reduce"), sizes["ranks"]
    link = vgpu.get_interconnect(sizes["link"])
    if not sizes.get("switch", True):  # NCCL_NVLS_ENABLE=0
        link = dataclasses.replace(link, switch_bytes_per_second=0.0)
    seconds = vgpu.device.cost.collective_seconds(link, name, sizes["bytes"], ranks)
    share = (ranks - 1) / ranks * (2 if name == "all_reduce" else 1)
    return float(1e-9 * share * sizes["bytes"] / seconds)
