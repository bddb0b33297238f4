"""What a watched launch of a Triton kernel tells: bytes, products, strayed accesses, and races between programs."""

# ruff: noqa: N803 (constants of kernels are written in capitals)

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

import vgpu

if TYPE_CHECKING:
    import triton
    import triton.language as tl
else:
    triton = pytest.importorskip("triton")
    tl = pytest.importorskip("triton.language")


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def double(x_ptr: Any, out_ptr: Any, n: Any, BLOCK: tl.constexpr, MASKED: tl.constexpr) -> Any:
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < (n if MASKED else 1 << 30)
    tl.store(out_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=mask), mask=mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def total(x_ptr: Any, out_ptr: Any, lock_ptr: Any, BLOCK: tl.constexpr, HOW: tl.constexpr) -> Any:
    part = tl.sum(tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)), axis=0)
    if HOW == "atomic":
        tl.atomic_add(out_ptr, part)
    elif HOW == "lock":
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
        tl.store(out_ptr, tl.load(out_ptr) + part)
        tl.atomic_xchg(lock_ptr, 0)
    elif HOW == "relaxed lock":
        while tl.atomic_cas(lock_ptr, 0, 1, sem="relaxed") == 1:
            pass
        tl.store(out_ptr, tl.load(out_ptr) + part)
        tl.atomic_xchg(lock_ptr, 0, sem="relaxed")
    elif HOW == "last one":
        tl.store(out_ptr + 1 + tl.program_id(0), part)
        if tl.atomic_add(lock_ptr, 1) == tl.num_programs(0) - 1:
            tl.store(out_ptr, tl.sum(tl.load(out_ptr + 1 + tl.arange(0, 4)), axis=0))
    elif HOW == "one reads another's":
        tl.store(out_ptr + 1 + tl.program_id(0), part)
        if tl.program_id(0) == tl.num_programs(0) - 1:
            tl.store(out_ptr, tl.sum(tl.load(out_ptr + 1 + tl.arange(0, 4)), axis=0))
    elif HOW == "all the same":
        tl.store(out_ptr, 7.0)
    elif HOW == "the last one's":
        tl.store(out_ptr, part)
    else:
        tl.store(out_ptr, tl.load(out_ptr) + part)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def products(a_ptr: Any, b_ptr: Any, out_ptr: Any, WIDTH: tl.constexpr) -> Any:
    places = tl.arange(0, WIDTH)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    part = tl.dot(tl.load(a_ptr + places), tl.load(b_ptr + places))
    tl.store(out_ptr + places, tl.dot(part, tl.load(b_ptr + places).to(part.dtype), input_precision="ieee"))


@pytest.fixture
def gpu() -> Iterator[Any]:
    with vgpu.attach("T4", force=True) as gpu:
        yield gpu


def test_bytes_are_counted_in_memory_and_for_all_programs_together(gpu: Any) -> None:
    x, out = torch.arange(1000.0, device="cuda"), torch.zeros(1000, device="cuda")
    with vgpu.watch_kernels() as runs:
        double[(8,)](x, out, 1000, BLOCK=128, MASKED=True)
        total[(2,)](x, out, out, BLOCK=128, HOW="atomic")
    assert [(run.name, run.programs) for run in runs] == [("double", 8), ("total", 2)]
    # Where a tensor begins in the middle of a sector, one sector more is touched; two programs share the one between.
    assert 8000 <= runs[0].memory_bytes <= 8000 + 2 * 32
    assert 4000 <= runs[0].read_bytes <= 4000 + 8 * 32
    assert 4000 <= runs[0].written_bytes <= 4000 + 8 * 32
    assert runs[0].flops == 0
    assert out.tolist()[1:] == (2 * x).tolist()[1:]


def test_products_are_counted_and_their_precision(gpu: Any) -> None:
    a, b, out = (torch.ones(16, 16, device="cuda") for _ in range(3))
    with vgpu.watch_kernels() as runs:
        products[(1,)](a, b, out, WIDTH=16)
        products[(1,)](a.half(), b.half(), out, WIDTH=16)
    assert [(run.flops, run.tf32) for run in runs] == [(4 * 16**3, True), (4 * 16**3, False)]


def test_what_strays_is_counted_and_left_out(gpu: Any) -> None:
    x, out = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
    with vgpu.watch_kernels() as runs:
        double[(1,)](x, out, 100, BLOCK=128, MASKED=False)
    assert runs[0].strayed >= 28  # what is not in the other one's memory
    assert out.tolist() == [2.0] * 100


@pytest.mark.parametrize("how", ["atomic", "lock", "last one", "all the same"])
def test_programs_that_are_ordered_do_not_race(gpu: Any, how: str) -> None:
    x, out, lock = torch.ones(64, device="cuda"), torch.zeros(8, device="cuda"), torch.zeros(1, device="cuda").int()
    with vgpu.watch_kernels() as runs:
        total[(4,)](x, out, lock, BLOCK=16, HOW=how)
    assert runs[0].races == ()
    assert out[0].item() == (7 if how == "all the same" else 64)


@pytest.mark.parametrize(
    ("how", "element", "accesses"),
    [
        ("load and store", 0, ("written", "read")),
        ("relaxed lock", 0, ("written", "read")),
        ("one reads another's", 1, ("written", "read")),
        ("the last one's", 0, ("written", "written")),
    ],
)
def test_programs_that_nothing_orders_race(gpu: Any, how: str, element: int, accesses: tuple[str, str]) -> None:
    x, out = torch.arange(64.0, device="cuda"), torch.zeros(8, device="cuda")
    lock = torch.zeros(1, device="cuda").int()
    with vgpu.watch_kernels() as runs:
        total[(4,)](x, out, lock, BLOCK=16, HOW=how)
    first = runs[0].races[0]
    assert (first.argument, first.element, first.accesses) == ("out_ptr", element, accesses)
    assert first.programs[0] != first.programs[1]


def test_nothing_is_noted_where_nobody_watches(gpu: Any) -> None:
    x, out = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    with vgpu.watch_kernels() as runs:
        pass
    double[(1,)](x, out, 64, BLOCK=64, MASKED=True)
    assert runs == []


PROGRAM = """
import vgpu
with vgpu.attach("T4"):
    import torch
    from tests.vgpu.test_watched_kernels import total
    x, out, lock = torch.ones(64, device="cuda"), torch.zeros(8, device="cuda"), torch.zeros(1, device="cuda").int()
    with vgpu.watch_kernels() as runs:
        total[(4,)](x, out, lock, BLOCK=16, HOW="lock")
    print(out[0].item(), len(runs), runs[0].races)
"""


@pytest.mark.night
def test_a_program_may_import_triton_when_the_gpu_is_there_already() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.strip() == "64.0 1 ()", done.stderr[-2000:]


@pytest.mark.night
def test_compiled_code_calls_a_kernel(gpu: vgpu.VirtualGPU) -> None:
    """TorchDynamo traces up to the launch and after it, and neither the interpreter nor the kernel."""

    def doubled(data: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(data)
        double[(2,)](data, out, data.numel(), BLOCK=32, MASKED=True)
        return out

    compiled = torch.compile(lambda data: doubled(data + 1).relu(), backend="eager")
    data = torch.ones(50, device="cuda")
    for _ in range(2):
        assert compiled(data).tolist() == [4.0] * 50
    assert double[(2,)](data, data, 50, BLOCK=32, MASKED=True) is not None
    assert data.tolist() == [2.0] * 50
