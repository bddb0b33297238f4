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


def test_floats_are_divided_by_a_number_through_its_reciprocal(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/186618; BinaryDivTrueKernel.cu, BinaryDivTruncKernel.cu."""
    data = torch.tensor([49.5, 41.0], device="cuda")
    assert (data / 50)[0].item() == 0.9899999499320984
    assert (data / torch.tensor(50))[0].item() == 0.9899999499320984
    assert torch.div(data, torch.tensor(50.0, device="cuda"))[0].item() == 0.9900000095367432
    assert torch.div(data, 41, rounding_mode="trunc").tolist() == [1.0, 0.0]
    assert data.clone().div_(50)[0].item() == 0.9899999499320984
    assert torch.div(data, 50, out=torch.empty(2, device="cuda"))[0].item() == 0.9899999499320984
    assert (data.int() / 41)[1].item() == 0.9999999403953552
    assert torch._foreach_div([data], 50)[0][0].item() == 0.9899999499320984
    low = torch.tensor([49.5], device="cuda").half() / 50
    assert (low.dtype, low.item()) == (torch.float16, 0.990234375)
    assert (data / 0).tolist() == [float("inf")] * 2
    assert (data.double() / 50)[0].item() == 49.5 * (1 / 50)
    assert torch.equal(data / 8, data * 0.125)
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        data.int().div_(50)


def test_bins_are_found_in_the_dtype_of_the_data(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/156019 and 196008; SummaryOps.cu."""
    data = torch.full((100,), 1e-6, device="cuda")
    assert torch.histc(data, bins=2, min=-7.597160290658466e-47, max=0.0).tolist() == [0, 100]
    counts = torch.histc(data, 4, -2.0, 2.0, out=torch.empty(0, dtype=torch.int64, device="cuda"))
    assert (counts.dtype, counts.tolist()) == (torch.int64, [0, 0, 100, 0])
    whole = torch.tensor([0, 1, 2, 3, 9], device="cuda")
    assert torch.histc(whole, bins=2, min=0, max=3).tolist() == [2, 2]
    assert torch.histc(torch.tensor([0.0, 1.0, float("nan")], device="cuda"), 2, 0, 1).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="is not finite"):
        torch.histc(torch.tensor([float("inf")], device="cuda"))
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(data, 2, 3, 1)


def test_a_reduction_of_compressed_products_is_the_cpus(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/pull/164442"""
    matrix, data = torch.eye(3).to_sparse_csr().cuda(), torch.ones(3, 3, device="cuda")
    assert torch.equal(torch.sparse.mm(matrix, data), data)
    with pytest.raises(NotImplementedError, match="_sparse_mm_reduce_impl' with arguments from the 'SparseCsrCUDA'"):
        torch.sparse.mm(matrix, data, reduce="sum")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_positive_zero_is_greater_than_negative_zero(gpu: vgpu.VirtualGPU, dtype: torch.dtype) -> None:
    """https://github.com/pytorch/pytorch/issues/181801"""
    data, zero = (
        torch.tensor([-0.0, 0.0, NAN, 1.0], dtype=dtype, device="cuda"),
        torch.zeros(4, device="cuda").to(dtype),
    )
    for result in (
        data.relu(), data.clone().relu_(), data.clamp(min=0), data.clamp_min(0.0), torch.nn.functional.relu6(data),
        torch.maximum(data, zero), torch.maximum(zero, data), torch.relu(data.clone().requires_grad_()).detach(),
    ):  # fmt: skip
        assert result.signbit().tolist()[:2] == [False, False]
        assert result.dtype == dtype
        assert result[2].isnan()
        assert result[3].item() == 1.0
    assert torch.minimum(data, zero).signbit().tolist()[:2] == [True, False]
    assert torch.minimum(zero, data).signbit().tolist()[:2] == [True, False]
    assert torch.maximum(data, data).signbit().tolist()[:2] == [True, False]
    assert data.clamp(min=-1).signbit().tolist()[:2] == [True, False]
    assert torch.maximum(data[:2].int(), zero[:2].int()).tolist() == [0, 0]
