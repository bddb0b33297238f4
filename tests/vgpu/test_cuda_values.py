"""Values where C++ leaves a result undefined, and CUDA's differ from the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import vgpu

INF, NAN = float("inf"), float("nan")
# PTX ISA, `cvt`: conversions to integers saturate; NaN becomes 0, or the smallest number where 64 bits take part.
CONVERTED = {
    torch.int8: [-1, 0, 0, -1, -1, 44, -1],
    torch.int16: [32767, -32768, 0, 32767, -1, 300, 32767],
    torch.int32: [2**31 - 1, -(2**31), 0, 2**31 - 1, -1, 300, 70000],
    torch.int64: [2**63 - 1, -(2**63), -(2**63), 3 * 10**9, -1, 300, 70000],
    torch.uint8: [255, 0, 0, 3 * 10**9 % 256, 255, 44, 70000 % 256],
    torch.bool: [True] * 7,
}


@pytest.mark.parametrize("dtype", CONVERTED)
def test_floats_become_integers_as_in_ptx(gpu: vgpu.VirtualGPU, dtype: torch.dtype) -> None:
    x = torch.tensor([INF, -INF, NAN, 3e9, -1.5, 300.0, 70000.0], device="cuda")
    copied, assigned = torch.zeros(7, dtype=dtype, device="cuda"), torch.zeros(7, dtype=dtype, device="cuda")
    assigned[:] = x
    for converted in (x.to(dtype), copied.copy_(x), assigned, x.view(1, 7).t().to(dtype).view(-1)):
        assert converted.tolist() == CONVERTED[dtype]


def test_a_double_that_is_no_number_becomes_the_smallest_integer(gpu: vgpu.VirtualGPU) -> None:
    assert torch.tensor([NAN], dtype=torch.float64, device="cuda").int().tolist() == [-(2**31)]


def test_the_cpu_keeps_its_own_conversions(gpu: vgpu.VirtualGPU) -> None:
    assert torch.tensor([INF]).int().tolist() == [-(2**31)]


def whole(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(list(values), dtype=dtype, device="cuda")


LOWER = 2**32 - 1
# test/test_binary_ufuncs.py, `test_fmod_remainder_by_zero_integral`, and quotients after it.
DIVIDED: dict[str, tuple[Callable[[], torch.Tensor], list[int]]] = {
    "remainder": (lambda: whole(7, -7, 7) % whole(0, 0, 4), [LOWER, -1, 3]),
    "remainder of a number": (lambda: 7 % whole(0, 2), [LOWER, 1]),
    "fmod": (lambda: torch.fmod(whole(7, -7), 0), [LOWER, -1]),
    "32 bits": (lambda: whole(7, -7, dtype=torch.int32) % 0, [-1, -1]),
    "bytes": (lambda: whole(7, dtype=torch.uint8) % 0, [255]),
    "rounded down": (lambda: whole(7, -7, 9) // whole(0, 0, 4), [LOWER, -2, 2]),
    "rounded to zero": (lambda: torch.div(whole(7, -7), 0, rounding_mode="trunc"), [LOWER, -1]),
    "in place": (lambda: whole(7, -7).floor_divide_(whole(0, 2)), [LOWER, -4]),
    "broadcast": (lambda: (whole(7, 8) // whole(0, 2).view(2, 1)).view(-1), [LOWER, LOWER, 3, 4]),
}


def test_integers_divided_by_zero_give_what_the_hardware_does(gpu: vgpu.VirtualGPU) -> None:
    for name, (call, values) in DIVIDED.items():
        assert call().tolist() == values, name
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.tensor(7) // torch.tensor(0)
