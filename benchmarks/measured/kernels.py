"""Device time of single kernels: elementwise, reductions, norms, products. Not here: layers and backward."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's custom
from torch import Tensor

from benchmarks.measured.case import Make, Step

Entry = tuple[str, str, str, Make]
"""Group, name, precision, and what makes it."""
_HALF, _FULL = torch.float16, torch.float32
_PRECISIONS = (("fp32", _FULL), ("tf32", _FULL), ("fp16", _HALF), ("bf16", torch.bfloat16))


def single() -> Iterator[Entry]:
    """Kernels that one function of PyTorch launches."""
    yield from _elementwise()
    yield from _rows()
    yield from _products()


def _on(shape: tuple[int, ...], call: Callable[[Tensor], Any], dtype: torch.dtype = _FULL) -> Make:
    def make() -> Step:
        x = torch.randn(shape, device="cuda").to(dtype)
        return lambda: call(x)

    return make


def _elementwise() -> Iterator[Entry]:
    group = "kernel: elementwise"
    for power in (10, 14, 18, 20, 22, 24, 26, 28):
        yield group, f"x + 1, 2^{power} float32", "", _on((1 << power,), lambda x: x + 1)
    for power in (18, 22, 26):
        shape = (1 << power,)
        yield group, f"x + x, 2^{power} float16", "", _on(shape, lambda x: x + x, _HALF)
        yield group, f"x.half(), 2^{power}", "", _on(shape, lambda x: x.half())
        yield group, f"gelu, 2^{power} float16", "", _on(shape, F.gelu, _HALF)
        yield group, f"dropout, 2^{power} float32", "", _on(shape, F.dropout)
        yield group, f"exp, 2^{power} float32", "", _on(shape, torch.exp)
        yield group, f"zero_, 2^{power} float32", "", _on(shape, lambda x: x.zero_())
        yield group, f"clone, 2^{power} float32", "", _on(shape, lambda x: x.clone())
        yield "kernel: random", f"randn, 2^{power}", "", _on(shape, torch.randn_like)
        yield "kernel: reduction", f"sum, 2^{power} float32", "", _on(shape, torch.sum)


def _rows() -> Iterator[Entry]:
    for shape in ((128, 1024), (4096, 1024), (65536, 1024), (1024, 65536)):
        for dtype, kind in ((_FULL, "float32"), (_HALF, "float16")):
            yield "kernel: softmax", f"softmax {shape} {kind}", "", _on(shape, lambda x: torch.softmax(x, -1), dtype)
            norm = _on(shape, lambda x: F.layer_norm(x, x.shape[1:]), dtype)
            yield "kernel: norm", f"layer norm {shape} {kind}", "", norm
        yield "kernel: reduction", f"sum over rows {shape}", "", _on(shape, lambda x: x.sum(1))
        yield "kernel: reduction", f"sum over columns {shape}", "", _on(shape, lambda x: x.sum(0))
        yield "kernel: layout", f"transpose, contiguous {shape}", "", _on(shape, lambda x: x.t().contiguous())
        yield "kernel: reduction", f"argmax {shape}", "", _on(shape, lambda x: x.argmax(1))
    yield "kernel: sort", "sort, 2^20 float32", "", _on((1 << 20,), torch.sort)
    yield "kernel: sort", "topk of (1024, 65536), 10", "", _on((1024, 65536), lambda x: x.topk(10))


def _product(m: int, n: int, k: int, dtype: torch.dtype, transposed: str = "nn", batch: int = 0) -> Make:
    def make() -> Step:
        head = (batch,) if batch else ()
        left = torch.randn(*head, *((k, m) if transposed[0] == "t" else (m, k)), device="cuda").to(dtype)
        right = torch.randn(*head, *((n, k) if transposed[1] == "t" else (k, n)), device="cuda").to(dtype)
        left = left.mT if transposed[0] == "t" else left
        right = right.mT if transposed[1] == "t" else right
        return lambda: left @ right

    return make


def _products() -> Iterator[Entry]:
    for size in (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192):
        for precision, dtype in _PRECISIONS:
            yield f"kernel: product {precision}", f"{size} cubed", precision, _product(size, size, size, dtype)
    for m, n, k in (
        *((1, 4096, 4096), (16, 4096, 4096), (128, 4096, 4096), (512, 512, 8192), (8192, 8192, 128), (4096, 1000, 512)),
        *((32768, 768, 768), (16384, 3072, 768), (8192, 50304, 768), (4096, 4096, 4095)),
    ):
        for precision, dtype in (("tf32", _FULL), ("bf16", torch.bfloat16)):
            yield f"kernel: product {precision}", f"{m} x {n} x {k}", precision, _product(m, n, k, dtype)
    for transposed in ("nt", "tn"):
        make = _product(4096, 4096, 4096, torch.bfloat16, transposed)
        yield "kernel: product bf16", f"4096 cubed, {transposed}", "bf16", make
    for batch, m, n, k in ((128, 1024, 1024, 64), (128, 1024, 64, 1024), (512, 128, 128, 64)):
        for precision, dtype in (("tf32", _FULL), ("fp16", _HALF)):
            name = f"{batch} of {m} x {n} x {k} {precision}"
            yield "kernel: batched product", name, precision, _product(m, n, k, dtype, batch=batch)
    yield "kernel: product fp64", "2048 cubed", "", _product(2048, 2048, 2048, torch.float64)
