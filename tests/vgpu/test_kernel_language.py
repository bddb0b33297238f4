"""What the virtual GPU refuses to launch: kernels that Triton could not compile, and a Triton that was changed."""

# ruff: noqa: N803 (constants of kernels are written in capitals)

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import vgpu

if TYPE_CHECKING:
    import triton
    import triton.language as tl
else:
    triton = pytest.importorskip("triton")
    tl = pytest.importorskip("triton.language")

SCALE = 2.0
BLOCK_SIZE = tl.constexpr(16)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def doubled(values: Any) -> Any:
    return values * SCALE * (math.pi / math.pi)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def right(x_ptr: Any, out_ptr: Any, n: Any, BLOCK: tl.constexpr) -> Any:
    """Uses a helper, constants of the module and of `math`, builtins, methods and a loop."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x_ptr + places, mask=places < min(n, 1000), other=0.0).to(tl.float32)
    for _ in range(0, BLOCK_SIZE.value, 16):
        values = doubled(values)
    tl.store(out_ptr + places, values.to(out_ptr.dtype.element_ty), mask=(places < n) & (places >= 0))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def converts_indices(out_ptr: Any, n: Any) -> Any:
    for i in range(n):
        place = (2 * i + 1).to(tl.int64) - i.to(tl.int64) - 1  # type: ignore[attr-defined]
        tl.store(out_ptr + place, (i // 2).to(out_ptr.dtype.element_ty))  # type: ignore[attr-defined]
    for i in tl.range(0, n):
        tl.store(out_ptr + n + i, i.to(tl.float32) / 2)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def calls_numpy(x_ptr: Any, BLOCK: tl.constexpr) -> Any:
    values = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(x_ptr + tl.arange(0, BLOCK), np.exp(values))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def looks_inside(x_ptr: Any, BLOCK: tl.constexpr) -> Any:
    values = tl.load(x_ptr + tl.arange(0, BLOCK))
    values.handle.data[:] = 1.0
    tl.store(x_ptr + tl.arange(0, BLOCK), values)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def imports(x_ptr: Any, BLOCK: tl.constexpr) -> Any:
    import os

    tl.store(x_ptr + tl.arange(0, BLOCK), os.getpid())


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def evaluates(x_ptr: Any, BLOCK: tl.constexpr) -> Any:
    tl.store(x_ptr + tl.arange(0, BLOCK), eval("1.0"))


def on_the_host(values: Any) -> Any:
    return values


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def calls_the_host(x_ptr: Any, BLOCK: tl.constexpr) -> Any:
    tl.store(x_ptr + tl.arange(0, BLOCK), on_the_host(tl.load(x_ptr + tl.arange(0, BLOCK))))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def is_given_a_function(x_ptr: Any, BLOCK: tl.constexpr, F: tl.constexpr) -> Any:
    tl.store(x_ptr + tl.arange(0, BLOCK), F(tl.load(x_ptr + tl.arange(0, BLOCK))))


@pytest.fixture
def gpu() -> Iterator[Any]:
    with vgpu.attach("T4", force=True) as gpu:
        yield gpu


def test_what_triton_compiles_runs(gpu: Any) -> None:
    x, out = torch.arange(30.0, device="cuda"), torch.zeros(30, device="cuda")
    for _ in range(2):
        right[(2,)](x, out, 30, BLOCK=16)
    torch.testing.assert_close(out.cpu(), 2 * torch.arange(30.0))


def test_an_index_of_a_loop_converts(gpu: Any) -> None:
    out = torch.zeros(8, device="cuda")
    converts_indices[(1,)](out, 4)
    assert out.tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize("kernel", [calls_numpy, looks_inside, imports, evaluates, calls_the_host])
def test_what_triton_cannot_compile_is_not_launched(gpu: Any, kernel: Any) -> None:
    x = torch.ones(16, device="cuda")
    with pytest.raises(triton.CompilationError, match="does not compile"):
        kernel[(1,)](x, BLOCK=16)
    assert x.tolist() == [1.0] * 16


def test_a_helper_may_be_an_argument_and_a_function_of_the_host_may_not(gpu: Any) -> None:
    x = torch.ones(16, device="cuda")
    is_given_a_function[(1,)](x, BLOCK=16, F=doubled)
    with pytest.raises(TypeError, match="no type of an argument"):
        is_given_a_function[(1,)](x, BLOCK=16, F=on_the_host)
    assert x.tolist() == [2.0] * 16


def test_a_global_name_is_looked_at_again(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(16, device="cuda")
    monkeypatch.setitem(globals(), "on_the_host", doubled)
    calls_the_host[(1,)](x, BLOCK=16)
    monkeypatch.undo()
    with pytest.raises(triton.CompilationError, match="on_the_host"):
        calls_the_host[(1,)](x, BLOCK=16)


def test_a_changed_triton_launches_nothing(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, out = torch.arange(30.0, device="cuda"), torch.zeros(30, device="cuda")
    monkeypatch.setattr(tl, "load", tl.load.__wrapped__ if hasattr(tl.load, "__wrapped__") else on_the_host)
    with pytest.raises(RuntimeError, match="load was replaced"):
        right[(2,)](x, out, 30, BLOCK=16)


def test_hooks_and_grids_run_in_the_devices_sight(gpu: Any) -> None:
    x, out = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
    before = len(gpu.timeline)

    def grid(arguments: dict[str, Any]) -> tuple[int]:
        torch.exp(x)
        return (arguments["n"] // arguments["BLOCK"],)

    right[grid](x, out, 16, BLOCK=16)
    assert [kernel.name for kernel in gpu.timeline[before:]] == ["aten::exp", "right"]


def test_a_kernel_reaches_the_current_gpus_memory_only() -> None:
    with vgpu.attach("T4", gpus=2):
        x = torch.arange(4.0, device="cuda:1")
        out = torch.empty_like(x)
        with pytest.raises(ValueError, match=r"Pointer argument \(at 0\) cannot be accessed from Triton"):
            right[(1,)](x, out, 4, BLOCK=4)
        with torch.cuda.device(x.device):
            right[(1,)](x, out, 4, BLOCK=4)
        assert out.device == x.device
        assert out.tolist() != x.tolist()
