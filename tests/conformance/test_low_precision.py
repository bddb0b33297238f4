"""Numbers in 16 bits: range, rounding, accumulation in 32 bits, and the mistakes that follow from them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

IEEE = "IEEE 754-2008 binary16"
BFLOAT = "torch docs: torch.finfo; bfloat16 has 8 significant bits"
ACCUMULATE = "NVIDIA A100 whitepaper: tensor cores multiply in 16 bits and accumulate in FP32"


def half(*values: float) -> torch.Tensor:
    return torch.tensor(values, device="cuda", dtype=torch.float16)


@program(IEEE)
def test_float16_overflows_above_65504(cuda: Gpu) -> None:
    top = half(65504.0)
    assert torch.finfo(torch.float16).max == 65504
    assert (top + 15).item() == 65504  # rounds down
    assert math.isinf((top + 16).item())
    assert math.isinf((top * 2).item())
    assert half(70000.0).item() == math.inf
    assert (half(-300.0) * half(300.0)).item() == -math.inf
    assert math.isnan((half(70000.0) - half(70000.0)).item())


@program(IEEE)
def test_float16_underflows(cuda: Gpu) -> None:
    assert half(2.0**-24).item() == 2.0**-24
    assert half(2.0**-25).item() == 0.0
    assert half(1e-8).item() == 0.0
    assert (half(2.0**-14) / 1024).item() == 2.0**-24
    assert (half(1e-4) * half(1e-4)).item() == 0.0
    gradient = torch.tensor([1e-8], device="cuda")
    assert gradient.half().item() == 0.0
    assert (gradient * 65536).half().item() > 0.0  # what loss scaling is for


@program(IEEE)
def test_float16_rounds_to_even(cuda: Gpu) -> None:
    assert (half(2048.0) + 1).item() == 2048
    assert (half(2048.0) + 3).item() == 2052
    assert (half(1.0) + 2.0**-11).item() == 1.0
    assert (half(1.0) + 2.0**-10).item() == 1.0009765625
    assert torch.tensor([0.1], device="cuda").half().float().item() == 0.0999755859375


@program(BFLOAT)
def test_bfloat16_has_the_range_of_float32_and_few_digits(cuda: Gpu) -> None:
    one = torch.tensor(1.0, device="cuda", dtype=torch.bfloat16)
    assert (one + 2.0**-8).item() == 1.0
    assert (one + 2.0**-7).item() == 1.0078125
    assert (one * 256 + 1).item() == 256
    assert math.isfinite((one * 1e38).item())
    assert (one * 1e-30).item() == pytest.approx(1e-30, rel=2**-8)
    assert torch.tensor(3.39e38, device="cuda").to(torch.bfloat16).isfinite()
    assert torch.tensor(3.4e38, device="cuda").to(torch.bfloat16).isinf()
    assert (one.to(torch.float16) * 70000).isinf()


@program(ACCUMULATE)
def test_products_in_float16_accumulate_in_float32(cuda: Gpu) -> None:
    row = torch.ones(16, 8192, device="cuda", dtype=torch.float16)
    assert (row @ row.t())[0, 0].item() == 8192  # in float16 the sum would stop at 2048
    large = torch.tensor([60000.0, 60000.0, -60000.0, -60000.0] * 4, device="cuda", dtype=torch.float16)
    assert (large.expand(16, 16) @ torch.ones(16, 16, device="cuda", dtype=torch.float16)).abs().max().item() == 0
    assert torch.bmm(row[None], row.t()[None])[0, 0, 0].item() == 8192
    assert torch.nn.functional.linear(row, row)[3, 3].item() == 8192


@program(f"{ACCUMULATE}; results are rounded to the operands' type")
def test_products_in_float16_round_and_overflow_in_the_end(cuda: Gpu) -> None:
    x = torch.full((16, 16), 100.0, device="cuda", dtype=torch.float16)
    assert (x @ x).isinf().all()  # 160000
    assert torch.isfinite(x.float() @ x.float()).all()
    torch.manual_seed(0)
    a, b = torch.randn(64, 64, device="cuda").half(), torch.randn(64, 64, device="cuda").half()
    exact = a.double() @ b.double()
    error = ((a @ b).double() - exact).abs().max().item()
    assert error <= 2.0**-11 * exact.abs().max().item() * 1.01
    assert not torch.equal((a @ b).float(), a.float() @ b.float())


@program(f"{ACCUMULATE}; torch docs: bfloat16", capability=(8, 0))
def test_products_in_bfloat16(cuda: Gpu) -> None:
    row = torch.ones(16, 4096, device="cuda", dtype=torch.bfloat16)
    product = row @ row.t()
    assert (product.dtype, product[0, 0].item()) == (torch.bfloat16, 4096)
    x = torch.full((16, 16), 1e4, device="cuda", dtype=torch.bfloat16)
    assert torch.isfinite(x @ x).all()
    assert torch.cuda.is_bf16_supported(including_emulation=False)


@program("torch/cuda/__init__.py: is_bf16_supported", below_capability=(8, 0))
def test_bfloat16_is_emulated_on_older_gpus(cuda: Gpu) -> None:
    assert not torch.cuda.is_bf16_supported(including_emulation=False)
    assert torch.cuda.is_bf16_supported()
    x = torch.ones(8, 8, device="cuda", dtype=torch.bfloat16)
    assert (x + x).sum().item() == 128


@program(
    "aten/src/ATen/native/cuda/ReduceSumProdKernel.cu, ReduceMomentKernel.cu, ReduceNormKernel.cu: float accumulation"
)
def test_reductions_in_float16_accumulate_in_float32(cuda: Gpu) -> None:
    ones = torch.ones(70_000, device="cuda", dtype=torch.float16)
    assert ones[:40_000].sum().item() == 40_000
    assert ones.sum().isinf()
    assert ones.sum(dtype=torch.float32).item() == 70_000
    assert ones.mean().item() == 1.0
    assert ones[:10_000].norm().item() == 100
    assert ones.std().item() == 0
    assert ones.view(7, -1).mean(1).tolist() == [1.0] * 7
    assert (ones * 300).norm().isinf() or (ones * 300).norm().item() == pytest.approx(79_372, rel=1e-3)


@program("aten/src/ATen/native/cuda/SoftMax.cu, layer_norm_kernel.cu: internally float")
def test_normalisations_in_float16_compute_in_float32(cuda: Gpu) -> None:
    x = half(60000.0, 60000.0, -60000.0, 0.0)
    assert torch.softmax(x, 0).tolist() == [0.5, 0.5, 0.0, 0.0]
    normal = torch.nn.functional.layer_norm(x, (4,))
    exact = torch.nn.functional.layer_norm(x.double(), (4,))
    assert normal.dtype == torch.float16
    assert torch.allclose(normal.double(), exact, atol=2e-3)
    assert torch.logsumexp(half(*[0.0] * 100), 0).item() == pytest.approx(math.log(100), rel=1e-3)


@program("torch docs: Tensor Attributes, type promotion")
def test_python_numbers_do_not_widen(cuda: Gpu) -> None:
    x = half(1.0)
    assert (x + 1e-8).item() == 1.0
    assert (x * 2.5).dtype == (x + torch.tensor(1.0, device="cuda")).dtype == torch.float16
    assert (x + torch.ones(1, device="cuda")).dtype == torch.float32
    assert (x + torch.ones(1, device="cuda", dtype=torch.bfloat16)).dtype == torch.float32
    assert torch.result_type(x, torch.ones(1, device="cuda", dtype=torch.int64)) == torch.float16


@program("PyTorch AMP documentation: why weights stay in float32; arithmetic of binary16")
def test_small_updates_vanish_in_a_model_cast_to_half(cuda: Gpu) -> None:
    def trained(dtype: torch.dtype) -> float:
        weight = torch.ones(1, device="cuda", dtype=dtype, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1e-4)
        for _ in range(10):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
        return weight.item()

    assert trained(torch.float16) == 1.0
    assert trained(torch.float32) == pytest.approx(0.999, abs=1e-6)


@program("torch/optim/adam.py; arithmetic of binary16: eps=1e-8 is 0")
def test_adam_divides_by_zero_in_half(cuda: Gpu) -> None:
    weight = torch.ones(2, device="cuda", dtype=torch.float16, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    torch.optim.Adam([weight], lr=1e-3, foreach=False).step()
    assert weight.isnan().all()
    safe = torch.ones(2, device="cuda", dtype=torch.float16, requires_grad=True)
    safe.grad = torch.zeros_like(safe)
    torch.optim.Adam([safe], lr=1e-3, eps=1e-4).step()
    assert safe.tolist() == [1.0, 1.0]


@program("torch docs: torch.autograd.set_detect_anomaly")
def test_anomaly_mode_names_the_function_that_made_a_nan(cuda: Gpu) -> None:
    x = torch.zeros(1, device="cuda", requires_grad=True)
    text = r"Function 'SqrtBackward0' returned nan values in its 0th output."
    with torch.autograd.set_detect_anomaly(True):
        y = x.sqrt() * 0  # 0 * inf
        with (
            pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
            pytest.raises(RuntimeError, match=text),
        ):
            y.sum().backward()


@program("torch docs: nn.utils.clip_grad_norm_, error_if_nonfinite")
def test_non_finite_norms_are_found(cuda: Gpu) -> None:
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    weight.grad = torch.tensor([1.0, math.inf], device="cuda")
    text = "The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped."
    with pytest.raises(RuntimeError, match=text):
        nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
    assert nn.utils.clip_grad_norm_([weight], 1.0).isinf()
    assert weight.grad.isnan().any()
