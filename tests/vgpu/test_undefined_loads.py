"""What a masked load does not load, and names nothing for, is undefined: it shows as NaN wherever it is used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vgpu

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def total(x: Any, out: Any, n: Any, BLOCK: tl.constexpr, NAMED: tl.constexpr) -> Any:  # noqa: N803
    places = tl.arange(0, BLOCK)
    if NAMED:  # noqa: SIM108 (constants are tested by a statement)
        values = tl.load(x + places, mask=places < n, other=0.0)
    else:
        values = tl.load(x + places, mask=places < n)
    tl.store(out, tl.sum(values.to(tl.float32), axis=0))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def doubled(x: Any, out: Any, n: Any, BLOCK: tl.constexpr) -> Any:  # noqa: N803
    places = tl.arange(0, BLOCK)
    tl.store(out + places, 2 * tl.load(x + places, mask=places < n), mask=places < n)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_sum_over_what_is_not_there_is_undefined(dtype: torch.dtype) -> None:
    with vgpu.attach("A100-80GB"):
        x, out = torch.ones(5, device="cuda", dtype=dtype), torch.zeros(1, device="cuda")
        total[(1,)](x, out, 5, BLOCK=8, NAMED=True)
        assert out.item() == 5
        total[(1,)](x, out, 5, BLOCK=8, NAMED=False)
        assert out.isnan().item()
        total[(1,)](x, out, 5, BLOCK=4, NAMED=False)
        assert out.item() == 4  # all of the block is there


def test_what_is_not_stored_may_be_anything() -> None:
    with vgpu.attach("T4"):
        x, out = torch.ones(5, device="cuda"), torch.zeros(8, device="cuda")
        doubled[(1,)](x, out, 5, BLOCK=8)
        assert out.tolist() == [2, 2, 2, 2, 2, 0, 0, 0]
