"""Numbers and CPU scalars that CUDA's host code refuses or takes, read from it (`vgpu.tools.cuda_rules.stand_in`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import vgpu

CPU = torch.tensor(1.0)
BIG = torch.tensor(1e30)


def on_gpu(*size: int) -> torch.Tensor:
    return torch.ones(*size, device="cuda")


def half() -> torch.Tensor:
    return on_gpu(3).half()


def eight() -> torch.Tensor:
    return on_gpu(3).to(torch.int8)


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda: torch.where(on_gpu(3) > 0, half(), 1e30), "c10::Half"),
        (lambda: torch.where(on_gpu(3) > 0, -1e30, half()), "c10::Half"),
        (lambda: half().where(on_gpu(3) > 0, 1e30), "c10::Half"),
        (lambda: torch.where(on_gpu(3) > 0, on_gpu(3).bfloat16(), 1e39), "c10::BFloat16"),
        (lambda: half().__setitem__(0, 1e30), "c10::Half"),
        (lambda: half().__setitem__(0, 65519), "c10::Half"),
        (lambda: on_gpu(3, 3).half().__setitem__((0, 1), 70000), "c10::Half"),
        (lambda: half().__setitem__(slice(0, 2), 1e30), "c10::Half"),
        (lambda: torch.addmv(half(), on_gpu(3, 3).half(), half(), alpha=1e30), "c10::Half"),
        (lambda: half().addmv_(on_gpu(3, 3).half(), half(), beta=-1e5), "c10::Half"),
        (lambda: torch.scalar_tensor(1e30, dtype=torch.float16, device="cuda"), "c10::Half"),
        (lambda: half().fill_(BIG), "c10::Half"),
        (lambda: torch.fill(half(), BIG), "c10::Half"),
        (lambda: torch._foreach_add([eight()], 300), "int8_t"),
        (lambda: torch._foreach_mul([on_gpu(3).int(), eight()], [1, 300]), "int8_t"),
        (lambda: torch._foreach_sub_([on_gpu(3).int()], 2**40), "int"),
    ],
)
def test_a_number_has_to_fit(gpu: vgpu.VirtualGPU, call: Callable[[], object], dtype: str) -> None:
    with pytest.raises(RuntimeError, match=f"value cannot be converted to type {dtype} without overflow"):
        call()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: torch.where(on_gpu(3) > 1, half(), float("inf")), [float("inf")] * 3),
        (lambda: torch.where(on_gpu(3) > 0, on_gpu(3), 1e30), [1.0] * 3),
        (lambda: torch.where(on_gpu(3) > 1, 65504.0, half()), [1.0] * 3),
        (lambda: half().fill_(float("-inf")), [float("-inf")] * 3),
        (lambda: torch._foreach_maximum([half()], 1e30)[0], [float("inf")] * 3),
        (lambda: torch._foreach_add([on_gpu(3).to(torch.uint8)], -1)[0], [0] * 3),
        (lambda: torch._foreach_addcmul([on_gpu(3)], [on_gpu(3)], [on_gpu(3)], torch.ones(1))[0], [2.0] * 3),
        (lambda: torch.pow(on_gpu(3).int(), torch.tensor(-2)), [1] * 3),
    ],
)
def test_these_fit(gpu: vgpu.VirtualGPU, call: Callable[[], torch.Tensor], expected: list[float]) -> None:
    result = call()
    assert result.is_cuda
    assert result.tolist() == expected


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: torch.stack([on_gpu(1)[0], CPU]), RuntimeError, "tensors is on cpu, .*wrapper_CUDA_cat"),
        (lambda: torch.clamp(on_gpu(3), CPU, out=on_gpu(3)), RuntimeError, "at least two devices, cuda:0 and cpu"),
        (lambda: torch.meshgrid(on_gpu(3), torch.ones(3)), RuntimeError, "all tensors to have the same device"),
        (
            lambda: torch._foreach_addcdiv([on_gpu(3)], [on_gpu(3)], [on_gpu(3)], on_gpu(1)),
            RuntimeError, "Expected scalars to be on CPU, got cuda:0 instead",
        ),
        (lambda: torch.pow(eight(), torch.tensor(-1)), NotImplementedError, "\"reciprocal_cuda\" not.*'Long'|'Char'"),
        (lambda: torch.linspace(on_gpu(3), 5.0, 3), RuntimeError, "only supports 0-dimensional start and end"),
    ],
)  # fmt: skip
def test_where_a_scalar_must_be(
    gpu: vgpu.VirtualGPU, call: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call()


def test_the_ends_of_a_range_do_not_decide_about_its_device(gpu: vgpu.VirtualGPU) -> None:
    for function in (torch.linspace, torch.logspace):
        assert function(CPU, 5.0, 3, device="cuda").is_cuda
        assert function(0.0, CPU, 3, device="cuda").is_cuda
        assert not function(on_gpu(1)[0], on_gpu(1)[0] * 5, 3).is_cuda
    assert torch.linspace(CPU, 5.0, 3, device="cuda").tolist() == [1.0, 3.0, 5.0]
