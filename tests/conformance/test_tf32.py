"""TF32: its switches by the old names and the new, and what it does to values and times."""

from __future__ import annotations

import pytest
import torch

from tests.conformance.machine import Gpu
from tests.conformance.measure import device_seconds
from tests.conformance.programs import program

NOTES = "PyTorch CUDA semantics notes: TensorFloat-32 (TF32) on Ampere (and later) devices"


@program(NOTES)
def test_tf32_is_off_for_products_and_on_for_convolutions(cuda: Gpu) -> None:
    assert torch.backends.cuda.matmul.allow_tf32 is False
    assert torch.backends.cudnn.allow_tf32 is True
    assert torch.get_float32_matmul_precision() == "highest"


@program("torch docs: torch.set_float32_matmul_precision")
def test_the_precision_of_products_by_one_word(cuda: Gpu) -> None:
    x = torch.ones(8, 8, device="cuda")
    for word, allowed in (("high", True), ("medium", True), ("highest", False)):
        torch.set_float32_matmul_precision(word)
        assert torch.get_float32_matmul_precision() == word
        assert torch.backends.cuda.matmul.allow_tf32 is allowed
        assert (x @ x)[0, 0].item() == 8
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.get_float32_matmul_precision() == "high"
    with pytest.warns(UserWarning, match="has no effect"):
        torch.set_float32_matmul_precision("lowest")


@program(f"{NOTES}: fp32_precision, the new API")
def test_the_new_switches_work_and_products_go_on(cuda: Gpu) -> None:
    x = torch.ones(8, 8, device="cuda")
    for precision in ("tf32", "ieee"):
        torch.backends.cuda.matmul.fp32_precision = precision
        assert torch.backends.cuda.matmul.fp32_precision == precision
        assert (x @ x)[0, 0].item() == 8
        torch.backends.cudnn.conv.fp32_precision = precision
        image = torch.ones(1, 1, 4, 4, device="cuda", requires_grad=True)
        result = torch.nn.functional.conv2d(image, torch.ones(1, 1, 3, 3, device="cuda"))
        assert result.sum().item() == 36
        result.sum().backward()
    torch.backends.fp32_precision = "tf32"
    assert (x @ x)[0, 0].item() == 8


@program(f"{NOTES}: mixing the old and the new API is an error")
def test_mixed_switches_are_refused(cuda: Gpu) -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        _ = torch.backends.cuda.matmul.allow_tf32


@program(f"{NOTES}; TF32 has 10 bits of mantissa (NVIDIA A100 whitepaper)", capability=(8, 0))
def test_tf32_rounds_the_operands_of_products(cuda: Gpu) -> None:
    x = torch.full((256, 256), 1 + 2.0**-12, device="cuda")
    y = torch.ones(256, 256, device="cuda")
    exact = 256 * (1 + 2.0**-12)
    assert (x @ y)[0, 0].item() == exact
    torch.backends.cuda.matmul.allow_tf32 = True
    assert (x @ y)[0, 0].item() == 256.0
    assert (x.double() @ y.double())[0, 0].item() == exact
    torch.backends.cuda.matmul.allow_tf32 = False
    assert (x @ y)[0, 0].item() == exact


@program(NOTES, capability=(8, 0))
def test_tf32_is_faster(cuda: Gpu) -> None:
    x = torch.ones(2048, 2048, device="cuda")
    plain = device_seconds(lambda: x @ x)
    torch.set_float32_matmul_precision("high")
    assert device_seconds(lambda: x @ x) < 0.67 * plain


@program(NOTES, below_capability=(8, 0))
def test_older_gpus_ignore_the_switch(cuda: Gpu) -> None:
    x = torch.full((256, 256), 1 + 2.0**-12, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    assert (x @ torch.ones(256, 256, device="cuda"))[0, 0].item() == 256 * (1 + 2.0**-12)
