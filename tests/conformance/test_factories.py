"""Tensors made on the GPU: factories, `*_like`, `new_*`, from data, and `out=`."""

from __future__ import annotations

import math
import warnings

import numpy
import pytest
import torch

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

CUDA = torch.device("cuda", 0)
CREATION = "torch docs: Creation Ops"


@program(CREATION)
def test_every_factory_makes_its_values_on_the_gpu(cuda: Gpu) -> None:
    made = {
        "zeros": torch.zeros(2, 2, device="cuda"),
        "ones": torch.ones((2, 2), device="cuda"),
        "full": torch.full((2, 2), 7.0, device="cuda"),
        "arange": torch.arange(1, 4, device="cuda"),
        "range": torch.arange(0.0, 1.0, 0.25, device="cuda"),
        "linspace": torch.linspace(0, 1, 3, device="cuda"),
        "logspace": torch.logspace(0, 2, 3, device="cuda"),
        "eye": torch.eye(2, device="cuda"),
        "tril_indices": torch.tril_indices(2, 2, device="cuda"),
        "triu_indices": torch.triu_indices(2, 2, device="cuda"),
        "hann_window": torch.hann_window(4, device="cuda"),
        "complex": torch.complex(torch.ones(2, device="cuda"), torch.zeros(2, device="cuda")),
        "tensor": torch.tensor([[1, 2]], device="cuda"),
        "as_tensor": torch.as_tensor([1.5], device="cuda"),
        "asarray": torch.asarray([1, 0], dtype=torch.bool, device="cuda"),
        "scalar_tensor": torch.scalar_tensor(2.0, device="cuda"),
    }
    expected = {
        "zeros": [[0, 0], [0, 0]], "ones": [[1, 1], [1, 1]], "full": [[7, 7], [7, 7]], "arange": [1, 2, 3],
        "range": [0, 0.25, 0.5, 0.75], "linspace": [0, 0.5, 1], "logspace": [1, 10, 100], "eye": [[1, 0], [0, 1]],
        "tril_indices": [[0, 1, 1], [0, 0, 1]], "triu_indices": [[0, 0, 1], [0, 1, 1]],
        "hann_window": [0, 0.5, 1, 0.5], "complex": [1, 1], "tensor": [[1, 2]], "as_tensor": [1.5],
        "asarray": [True, False], "scalar_tensor": 2,
    }  # fmt: skip
    for name, tensor in made.items():
        assert tensor.device == CUDA, name
        assert torch.allclose(tensor.cpu().to(torch.complex64), torch.tensor(expected[name]).to(torch.complex64)), name


@program(CREATION)
def test_empty_tensors_of_every_kind_live_on_the_gpu(cuda: Gpu) -> None:
    for tensor, stride in (
        (torch.empty(2, 3, device="cuda"), (3, 1)),
        (torch.empty((2, 3), dtype=torch.int8, device=0), (3, 1)),
        (torch.empty_strided((2, 3), (1, 2), device="cuda"), (1, 2)),
        (torch.empty_permuted((2, 3), (1, 0), device="cuda"), (1, 2)),
        (torch.empty(1, 2, 3, 4, device="cuda", memory_format=torch.channels_last), (24, 1, 8, 2)),
    ):
        assert tensor.device == CUDA
        assert tensor.stride() == stride


@program("torch docs: Random sampling")
def test_random_factories_fill_the_gpu_in_their_range(cuda: Gpu) -> None:
    uniform = torch.rand(10_000, device="cuda")
    normal = torch.randn(10_000, device="cuda")
    whole = torch.randint(3, 6, (1000,), device="cuda")
    assert uniform.device == normal.device == whole.device == torch.randperm(5, device="cuda").device == CUDA
    assert 0 <= uniform.min() <= uniform.max() < 1
    assert abs(uniform.mean().item() - 0.5) < 0.02
    assert abs(normal.mean().item()) < 0.05
    assert abs(normal.std().item() - 1) < 0.05
    assert set(whole.tolist()) == {3, 4, 5}
    assert sorted(torch.randperm(50, device="cuda").tolist()) == list(range(50))
    assert torch.normal(2.0, 0.5, (3, 4), device="cuda").device == CUDA
    assert torch.normal(torch.zeros(3, device="cuda"), 1.0).device == CUDA
    assert torch.bernoulli(torch.full((3,), 1.0, device="cuda")).tolist() == [1, 1, 1]


@program("torch docs: torch.zeros_like and the like: same device unless another is given")
def test_like_functions_follow_their_model(cuda: Gpu) -> None:
    model = torch.arange(4, device="cuda", dtype=torch.float16)
    for make in (torch.zeros_like, torch.ones_like, torch.empty_like, torch.rand_like, torch.randn_like):
        tensor = make(model)
        assert (tensor.device, tensor.dtype, tensor.shape) == (CUDA, torch.float16, (4,))
        assert make(model, device="cpu").device.type == "cpu"
        assert make(model.cpu(), device="cuda").device == CUDA
        assert make(model, dtype=torch.float32).device == CUDA
    assert torch.full_like(model, 3).tolist() == [3, 3, 3, 3]
    assert torch.randint_like(model, 5).device == CUDA


@program("torch docs: Tensor.new_zeros and the like")
def test_new_functions_follow_their_model(cuda: Gpu) -> None:
    model = torch.zeros(1, device="cuda", dtype=torch.float64)
    made = [model.new_zeros(2), model.new_ones((2,)), model.new_full((2,), 5), model.new_empty(2)]
    made += [model.new_tensor([1, 2]), model.new_empty_strided((2,), (1,))]
    for tensor in made:
        assert (tensor.device, tensor.dtype, tensor.shape) == (CUDA, torch.float64, (2,))
    assert made[2].tolist() == [5, 5]
    assert made[4].tolist() == [1, 2]
    assert model.new_zeros(2, device="cpu").device.type == "cpu"
    assert torch.zeros(1).new_ones(2, device="cuda").device == CUDA


@program("torch docs: torch.tensor, torch.as_tensor, torch.from_numpy")
def test_tensors_from_data(cuda: Gpu) -> None:
    array = numpy.array([1.0, 2.0], dtype=numpy.float32)
    copied = torch.as_tensor(array, device="cuda")
    array[0] = 9.0
    assert copied.tolist() == [1.0, 2.0]
    on_gpu = torch.tensor([1.0, 2.0], device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises clone().detach()
        again = torch.tensor(on_gpu)
    assert again.device == CUDA
    assert again.data_ptr() != on_gpu.data_ptr()
    assert torch.as_tensor(on_gpu) is on_gpu
    assert torch.as_tensor(on_gpu, device="cpu").device.type == "cpu"
    assert torch.tensor([on_gpu[0], on_gpu[1]]).device.type == "cpu"
    assert torch.tensor(array, device="cuda", requires_grad=True).requires_grad
    assert torch.tensor(3, device="cuda").shape == ()


@program("torch docs: torch.full, torch.tensor: type inference")
def test_types_are_inferred_as_on_the_cpu(cuda: Gpu) -> None:
    assert torch.full((1,), 1, device="cuda").dtype == torch.int64
    assert torch.full((1,), True, device="cuda").dtype == torch.bool
    assert torch.tensor([1, 2.0], device="cuda").dtype == torch.float32
    assert torch.arange(2.0, device="cuda").dtype == torch.float32
    assert torch.eye(2, dtype=torch.float16, device="cuda").sum().item() == 2
    torch.set_default_dtype(torch.float64)
    assert torch.zeros(1, device="cuda").dtype == torch.float64


@program("aten/src/ATen/TensorIterator.cpp: compute_types, allocate_or_resize_outputs")
def test_an_out_argument_must_be_on_the_same_device(cuda: Gpu) -> None:
    x, out = torch.ones(3, device="cuda"), torch.empty(3, device="cuda")
    assert torch.add(x, x, out=out) is out
    assert out.tolist() == [2, 2, 2]
    text = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    with pytest.raises(RuntimeError, match=text):
        torch.add(x, x, out=torch.empty(3))
    empty = torch.empty(0, device="cuda")
    assert torch.mul(x, 2, out=empty).shape == (3,)
    assert torch.mm(
        torch.eye(2, device="cuda"), torch.eye(2, device="cuda"), out=torch.empty(2, 2, device="cuda")
    ).is_cuda
    assert torch.zeros(2, out=torch.empty(2, device="cuda")).device == CUDA


@program("torch docs: Generator arguments of factories; aten/src/ATen/core/Generator.h: check_generator")
def test_a_generator_must_be_on_the_factorys_device(cuda: Gpu) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(2, device="cuda", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.randn(2, generator=torch.Generator(device="cuda"))
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.zeros(2, device="cuda").normal_(generator=torch.Generator())


@program("torch docs: nn.init, device= of modules")
def test_initialisers_work_in_place_on_the_gpu(cuda: Gpu) -> None:
    weight = torch.empty(64, 64, device="cuda")
    for fill in (torch.nn.init.xavier_uniform_, torch.nn.init.kaiming_normal_, torch.nn.init.orthogonal_):
        assert fill(weight) is weight
        assert weight.device == CUDA
        assert torch.isfinite(weight).all()
    product = weight @ weight.t()
    assert torch.allclose(product, torch.eye(64, device="cuda"), atol=1e-4)
    torch.nn.init.trunc_normal_(weight, std=0.02)
    assert weight.abs().max() <= 2.0
    assert math.isclose(weight.std().item(), 0.02, rel_tol=0.1)
