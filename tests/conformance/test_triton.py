"""Triton kernels: values, masks, atomics, autotuning, measurements, and what a kernel cannot reach."""

# ruff: noqa: N803 (constants of kernels are written in capitals; without annotations, which Triton would compile)
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import pytest
import torch

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

LANGUAGE = "Triton docs: triton.language"
TUTORIALS = "Triton tutorials: vector addition, fused softmax, matrix multiplication"
TESTING = "Triton docs: triton.testing.do_bench, triton.autotune"


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def softmax(out_ptr, in_ptr, stride, n, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(in_ptr + row * stride + columns, mask=columns < n, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out_ptr + row * stride + columns, powers / tl.sum(powers, axis=0), mask=columns < n)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def count(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.atomic_add(out_ptr + tl.load(x_ptr + offsets, mask=mask, other=0), 1, mask=mask)


def _matmul(
    a, b, c, M, N, K, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    columns = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    inner = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for begin in range(0, K, TILE_K):
        left = tl.load(a + rows[:, None] * K + (begin + inner)[None, :])
        right = tl.load(b + (begin + inner)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16))


matmul = triton.jit(_matmul)
tuned = triton.autotune(
    configs=[triton.Config({"TILE_M": size, "TILE_N": size, "TILE_K": 32}) for size in (32, 64)], key=["M"]
)(triton.jit(_matmul))


@program(TUTORIALS, module="triton")
def test_vectors_are_added(cuda: Gpu) -> None:
    n = 5003
    x, y, out = torch.rand(n, device="cuda"), torch.rand(n, device="cuda"), torch.zeros(n + 9, device="cuda")
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=1024)
    assert torch.equal(out[:n], x + y)
    assert not out[n:].any()  # beyond the mask


@program(TUTORIALS, module="triton")
def test_a_softmax_is_fused(cuda: Gpu) -> None:
    x = torch.randn(17, 231, device="cuda")
    out = torch.empty_like(x)
    softmax[(17,)](out, x, x.stride(0), 231, BLOCK=256)
    assert torch.allclose(out, torch.softmax(x, dim=1), atol=1e-6)


@program(LANGUAGE, module="triton")
def test_atomics_add_up(cuda: Gpu) -> None:
    x = torch.randint(0, 5, (900,), device="cuda", dtype=torch.int32)
    out = torch.zeros(5, device="cuda", dtype=torch.int32)
    count[(4,)](x, out, 900, BLOCK=256)
    assert out.tolist() == torch.bincount(x.long(), minlength=5).tolist()


@program(TUTORIALS, module="triton")
def test_tiles_are_multiplied(cuda: Gpu) -> None:
    a, b = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(a)
    matmul[(2, 2)](a, b, out, 64, 64, 64, TILE_M=32, TILE_N=32, TILE_K=32)
    assert torch.allclose(out, a @ b, atol=0.05)


@program(TESTING, module="triton")
def test_autotuning_chooses_a_configuration(cuda: Gpu) -> None:
    a, b = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(a)
    tuned[lambda meta: (64 // meta["TILE_M"], 64 // meta["TILE_N"])](a, b, out, 64, 64, 64)
    assert torch.allclose(out, a @ b, atol=0.05)
    assert tuned.best_config.kwargs["TILE_M"] in (32, 64)


@program(TESTING, module="triton")
def test_a_benchmark_tells_milliseconds(cuda: Gpu) -> None:
    x = torch.rand(1 << 16, device="cuda")
    took = triton.testing.do_bench(lambda: torch.sin(x))
    assert 1e-4 < took < 10
    assert len(triton.testing.do_bench(lambda: torch.sin(x), quantiles=[0.5, 0.2, 0.8])) == 3


@program("triton/runtime/jit.py: pointers to host memory", module="triton")
def test_a_kernel_cannot_reach_the_hosts_memory(cuda: Gpu) -> None:
    out = torch.zeros(8, device="cuda")
    with pytest.raises(ValueError, match="cannot be accessed from Triton"):
        add[(1,)](torch.ones(8), out, out, 8, BLOCK=16)


@program("PyTorch CUDA semantics notes: CUDA graphs; Triton kernels are captured like others", module="triton")
def test_a_kernel_is_captured_in_a_graph(cuda: Gpu) -> None:
    x, y, out = torch.ones(32, device="cuda"), torch.ones(32, device="cuda"), torch.zeros(32, device="cuda")
    add[(1,)](x, y, out, 32, BLOCK=32)  # compiled before
    out.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add[(1,)](x, y, out, 32, BLOCK=32)
        doubled = out * 2
    assert not out.any()
    x.fill_(4)
    graph.replay()
    assert doubled.tolist() == [10.0] * 32


def _added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), BLOCK=32)
    return out


@program("torch docs: user-defined Triton kernels with torch.compile", module="triton")
def test_a_kernel_is_in_a_graph(cuda: Gpu) -> None:
    x, y = torch.rand(100, device="cuda"), torch.rand(100, device="cuda")
    compiled = torch.compile(lambda x, y: _added(x * 2, y).sin(), fullgraph=True)
    assert torch.allclose(compiled(x, y), (x * 2 + y).sin())
    explained = torch._dynamo.explain(lambda x, y: _added(x, y) + 1)(x, y)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)


@program("torch docs: torch.library.triton_op and wrap_triton", module="triton")
def test_a_kernel_is_in_an_operator_that_is_compiled(cuda: Gpu) -> None:
    @torch.library.triton_op("conformance::added", mutates_args={})
    def operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(add)[(triton.cdiv(x.numel(), 32),)](x, y, out, x.numel(), BLOCK=32)
        return out

    x, y = torch.rand(100, device="cuda"), torch.rand(100, device="cuda")
    assert torch.allclose(operator(x, y), x + y)
    assert torch.allclose(torch.compile(lambda x, y: operator(x, y) * 2, fullgraph=True)(x, y), (x + y) * 2)
