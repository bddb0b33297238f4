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
        (lambda: torch._foreach_mul([eight(), eight()], [1, 300]), "int8_t"),
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


def test_a_list_of_several_dtypes_is_computed_one_by_one(gpu: vgpu.VirtualGPU) -> None:
    """ForeachUtils.h: each tensor by the single operation, which wraps where the list operation refuses a number."""
    one, two = torch._foreach_add([on_gpu(2).to(torch.uint8), on_gpu(2)], 300)
    assert (one.dtype, one.tolist(), two.tolist()) == (torch.uint8, [45, 45], [301.0, 301.0])
    dtypes = [value.dtype for value in torch._foreach_div([half(), on_gpu(2)], [2 + 1j, 1.5])]
    assert dtypes == [torch.complex32, torch.float32]
    assert [value.dtype for value in torch._foreach_pow(2.5, [on_gpu(2).int(), half()])] == [torch.float32, torch.half]
    numbers = [on_gpu(2).int(), on_gpu(2)]
    torch._foreach_mul_(numbers, 3)
    assert [number.tolist() for number in numbers] == [[3, 3], [3.0, 3.0]]
    with pytest.raises(RuntimeError, match="type c10::Half without overflow"):
        torch._foreach_pow([half(), on_gpu(2)], [1e30, 1.5])
    with pytest.raises(NotImplementedError, match="\"clamp_scalar_cuda\" not implemented for 'Bool'"):
        torch._foreach_maximum([on_gpu(2).bool()], True)


@pytest.mark.parametrize(
    ("count", "dtype", "words"),
    [
        (257, torch.uint8, "value cannot be converted to type uint8_t without overflow"),
        (129, torch.int8, "value cannot be converted to type int8_t without overflow"),
        (32769, torch.int16, "value cannot be converted to type int16_t without overflow"),
        (2050, torch.float16, "n cannot be greater than 2049 for Half type."),
        (70000, torch.float16, "value cannot be converted to type c10::Half without overflow"),
        (1, torch.bfloat16, "\"randperm_out_cuda\" not implemented for 'BFloat16'"),
        (0, torch.bool, "\"arange_cuda\" not implemented for 'Bool'"),
    ],
)
def test_a_permutation_fits_its_dtype(gpu: vgpu.VirtualGPU, count: int, dtype: torch.dtype, words: str) -> None:
    for options in ({"dtype": dtype, "device": "cuda"}, {"out": torch.empty(0, dtype=dtype, device="cuda")}):
        with pytest.raises(RuntimeError, match=words):
            torch.randperm(count, **options)
    if count > 200 and not dtype.is_floating_point:
        assert torch.randperm(count - 1, dtype=dtype, device="cuda").long().sort().values[-1].item() == count - 2


def truths() -> torch.Tensor:
    return on_gpu(2).bool()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: truths().clamp(max=True), "\"clamp_scalar_cuda\" not implemented for 'Bool'"),
        (lambda: truths().clamp(truths(), truths()), "\"clamp_cuda\" not implemented for 'Bool'"),
        (lambda: truths() << truths(), "\"lshift_cuda\" not implemented for 'Bool'"),
        (lambda: truths() >> True, "\"rshift_cuda\" not implemented for 'Bool'"),
        (lambda: torch.pow(True, truths()), "\"pow_cuda\" not implemented for 'Bool'"),
        (lambda: truths() % True, "\"remainder_cuda\" not implemented for 'Bool'"),
        (lambda: torch.fmod(truths(), True), "\"fmod_cuda\" not implemented for 'Bool'"),
        (lambda: torch.searchsorted(truths(), True), "\"searchsorted_out_cuda\" not implemented for 'Bool'"),
        (lambda: on_gpu(2).int() ** 1e39, "value cannot be converted to type float without overflow"),
        (lambda: torch.threshold(half(), 1e5, 0), "value cannot be converted to type c10::Half without overflow"),
        (lambda: on_gpu(2).exponential_(float("nan")), "expects lambda > 0.0, but found lambda=nan"),
        (lambda: on_gpu(2).cfloat().random_(3), "check_random_bounds handles only integral"),
        (lambda: on_gpu(2).cfloat().random_(), "\"random_kernel_cuda\" not implemented for 'ComplexFloat'"),
        (lambda: on_gpu(2).cfloat().bernoulli_(0.5), "\"bernoulli_scalar_cuda_\" not implemented for 'ComplexFloat'"),
    ],
)
def test_kernels_lack_truth_values_and_complex_numbers(
    gpu: vgpu.VirtualGPU, call: Callable[[], object], words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        call()


def test_these_kernels_take_truth_values(gpu: vgpu.VirtualGPU) -> None:
    assert torch.clamp_min(truths(), truths()).tolist() == [True, True]
    assert truths().clamp(max=1).dtype == torch.int64
    assert (truths() ** True).tolist() == [True, True]


def test_norms_and_recurrent_layers_have_one_dtype(gpu: vgpu.VirtualGPU) -> None:
    """Normalization.cpp (CUDA), RNN.cpp `check_attributes`: the CPU widens whatever has 16 bits."""
    norm, data = torch.nn.functional.batch_norm, on_gpu(2, 3, 4).half()
    low, single = on_gpu(3).half(), on_gpu(3)
    assert norm(data, single, single, single, single).dtype == torch.half
    with pytest.raises(RuntimeError, match="Expected weight to have type Float but got BFloat16"):
        norm(data, single, single, on_gpu(3).bfloat16(), low)
    with pytest.raises(RuntimeError, match="Expected bias to have type Half but got Float"):
        norm(data, single, single, low, single)
    layer, sequence = torch.nn.GRU(3, 3).to("cuda", torch.bfloat16), on_gpu(2, 1, 3).bfloat16()
    with pytest.raises(RuntimeError, match=r"not the same dtype, found input tensor with BFloat16 and hidden .* Half"):
        layer(sequence, on_gpu(1, 1, 3).half())


@pytest.mark.skipif(torch.result_type(torch.ones(1).bfloat16(), 1j) == torch.complex64, reason="promoted before 2.15")
@pytest.mark.filterwarnings("ignore:BComplex32")
def test_bfloat16_has_no_complex_partner(gpu: vgpu.VirtualGPU) -> None:
    for call, kernel in (
        (lambda: on_gpu(2).bfloat16() + 1j, "ufunc_add_CUDA"),
        (lambda: on_gpu(2).bfloat16() * 1j, "mul_cuda"),
    ):
        with pytest.raises(NotImplementedError, match=f"\"{kernel}\" not implemented for 'BComplex32'"):
            call()
