"""Where tensors and modules live, and what names they answer to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

CUDA = torch.device("cuda", 0)
ATTRIBUTES = "torch docs: Tensor Attributes (torch.device)"
SEMANTICS = "PyTorch CUDA semantics notes"


@program(ATTRIBUTES)
def test_every_spelling_of_the_device_means_the_current_gpu(cuda: Gpu) -> None:
    for device in ("cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda", 0), torch.device("cuda:0")):
        assert torch.zeros(2, device=device).device == CUDA
        assert torch.zeros(2).to(device).device == CUDA
        assert torch.zeros(2).cuda(device).device == CUDA


@program("torch docs: Tensor.to")
def test_every_form_of_to_moves_and_casts(cuda: Gpu) -> None:
    x = torch.arange(3.0)
    model = torch.zeros(1, dtype=torch.float16, device="cuda")
    for moved, dtype in (
        (x.to("cuda"), torch.float32),
        (x.to(device="cuda"), torch.float32),
        (x.to("cuda", torch.float64), torch.float64),
        (x.to("cuda", dtype=torch.float16), torch.float16),
        (x.to(device=CUDA, dtype=torch.int32, non_blocking=True, copy=True), torch.int32),
        (x.to(model), torch.float16),
        (x.to(model, non_blocking=True, copy=True), torch.float16),
        (x.type_as(model), torch.float16),
        (x.cuda(), torch.float32),
        (x.cuda(non_blocking=True), torch.float32),
        (x.cuda(device=0, memory_format=torch.contiguous_format), torch.float32),
    ):
        assert (moved.device, moved.dtype) == (CUDA, dtype)
        back = moved.cpu()
        assert back.device.type == "cpu"
        assert back.tolist() == [0, 1, 2]


@program("torch docs: Tensor.to: returns self where nothing changes")
def test_to_returns_the_tensor_itself_where_nothing_changes(cuda: Gpu) -> None:
    x = torch.zeros(2, device="cuda")
    for same in (x.to("cuda"), x.to("cuda:0"), x.to(torch.float32), x.to("cuda", torch.float32), x.cuda(), x.cuda(0)):
        assert same is x
    for copied in (x.to("cuda", copy=True), x.to(torch.float32, copy=True), x.to("cuda", torch.float32, False, True)):
        assert copied is not x
        assert copied.data_ptr() != x.data_ptr()
    host = torch.zeros(2)
    assert host.cpu() is host
    assert host.to("cpu") is host


@program("torch/csrc/autograd/generated/python_variable_methods.cpp: THPVariable_cuda")
def test_cuda_refuses_another_kind_of_device(cuda: Gpu) -> None:
    with pytest.raises(RuntimeError, match="Invalid device, must be cuda device"):
        torch.zeros(1).cuda("cpu")


@program("c10/cuda/CUDAException.cpp: AcceleratorError; CUDA runtime API: cudaErrorInvalidDevice")
def test_a_gpu_that_is_not_there_is_an_invalid_ordinal(cuda: Gpu) -> None:
    missing = torch.cuda.device_count()
    for call in (
        lambda: torch.zeros(1, device=f"cuda:{missing}"),
        lambda: torch.zeros(1).to(f"cuda:{missing}"),
        lambda: torch.zeros(1).cuda(missing),
        lambda: torch.cuda.set_device(missing),
    ):
        with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid device ordinal") as caught:
            call()
        assert isinstance(caught.value, RuntimeError)


@program("torch/cuda/__init__.py: get_device_properties")
def test_properties_of_a_gpu_that_is_not_there(cuda: Gpu) -> None:
    for ask in (torch.cuda.get_device_properties, torch.cuda.get_device_name, torch.cuda.get_device_capability):
        with pytest.raises(AssertionError, match="Invalid device id"):
            ask(torch.cuda.device_count())
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.get_device_name("cpu")


@program("torch docs: torch.cuda.get_device_properties")
def test_properties_agree_with_each_other(cuda: Gpu) -> None:
    properties = torch.cuda.get_device_properties("cuda")
    assert properties.name == torch.cuda.get_device_name(0)
    assert (properties.major, properties.minor) == torch.cuda.get_device_capability()
    assert properties.total_memory == torch.cuda.mem_get_info()[1]
    assert properties.warp_size == 32  # CUDA C++ Programming Guide, Hardware Multithreading
    assert properties.multi_processor_count > 0
    assert "total_memory=" in repr(properties)
    assert any(arch.startswith(("sm_", "compute_")) for arch in torch.cuda.get_arch_list())


@program("torch docs: torch.cuda")
def test_cuda_is_available_and_current(cuda: Gpu) -> None:
    torch.zeros(1, device="cuda")
    assert torch.cuda.is_available()
    assert torch.cuda.is_initialized()
    assert torch.cuda.device_count() >= 1
    assert torch.cuda.current_device() == 0
    assert torch.version.cuda is not None
    assert torch.backends.cuda.is_built()
    assert torch.backends.cudnn.is_available()


@program("torch docs: torch.accelerator")
def test_the_accelerator_is_cuda(cuda: Gpu) -> None:
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator == torch.device("cuda")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.cuda.device_count()
    assert torch.accelerator.current_device_index() == 0
    x = torch.ones(1000, device=accelerator)
    torch.accelerator.synchronize()
    assert x.sum().item() == 1000
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() > 0
    assert torch.accelerator.current_stream().stream_id == torch.cuda.current_stream().stream_id


@program("torch docs: torch.device as a context manager")
def test_the_innermost_device_context_counts(cuda: Gpu) -> None:
    with torch.device("cuda"):
        assert torch.zeros(1).device == CUDA
        assert torch.tensor([1]).device == CUDA
        with torch.device("cpu"):
            assert torch.zeros(1).device.type == "cpu"
        assert nn.Linear(2, 2).weight.device == CUDA
        assert torch.zeros(1, device="cpu").device.type == "cpu"
    assert torch.zeros(1).device.type == "cpu"


@program("torch docs: torch.set_default_device")
def test_the_default_device_is_used_by_factories_only(cuda: Gpu) -> None:
    host = torch.zeros(2)
    torch.set_default_device("cuda")
    assert torch.get_default_device() == CUDA
    assert torch.zeros(1).device == torch.arange(3).device == torch.randn(2).device == CUDA
    assert torch.tensor([1.0]).device == torch.as_tensor([1, 2]).device == CUDA
    assert nn.Conv2d(1, 1, 1).bias.device == CUDA
    assert host.device.type == (host + 1).device.type == torch.zeros_like(host).device.type == "cpu"
    assert torch.from_numpy(host.numpy()).device.type == "cpu"
    torch.set_default_device("cpu")
    assert torch.zeros(1).device.type == "cpu"


@program("torch/_tensor_str.py: _str_intern")
def test_tensors_print_their_device(cuda: Gpu) -> None:
    x = torch.tensor([1, 2], device="cuda")
    assert repr(x) == "tensor([1, 2], device='cuda:0')"
    assert repr(x.half()) == "tensor([1., 2.], device='cuda:0', dtype=torch.float16)"
    weight = torch.tensor([1.0], device="cuda", requires_grad=True)
    assert repr(weight) == "tensor([1.], device='cuda:0', requires_grad=True)"
    assert repr(weight * 2) == "tensor([2.], device='cuda:0', grad_fn=<MulBackward0>)"
    assert repr(x.cpu()) == "tensor([1, 2])"
    assert repr(torch.zeros(0, 3, device="cuda")) == "tensor([], device='cuda:0', size=(0, 3))"
    assert repr(nn.Parameter(torch.ones(1, device="cuda"))) == (
        "Parameter containing:\ntensor([1.], device='cuda:0', requires_grad=True)"
    )
    assert f"{torch.tensor(1.5, device='cuda'):.2f}" == "1.50"


@program("torch docs: Tensor.is_cuda, Tensor.get_device, Tensor.type")
def test_attributes_tell_the_device(cuda: Gpu) -> None:
    x = torch.zeros(2, device="cuda")
    assert (x.is_cuda, x.is_cpu, x.is_meta, x.get_device(), x.device.type, x.device.index) == (
        True, False, False, 0, "cuda", 0,
    )  # fmt: skip
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.half().type() == "torch.cuda.HalfTensor"
    assert x.cpu().get_device() == -1
    assert torch.zeros(2).type("torch.cuda.DoubleTensor").dtype == torch.float64
    assert x.type(torch.FloatTensor).device.type == "cpu"
    assert x.untyped_storage().device == CUDA
    assert x.untyped_storage().is_cuda
    assert x.is_shared()  # torch docs, Tensor.is_shared: always True for CUDA tensors


@program(ATTRIBUTES)
def test_cuda_and_cuda_0_are_different_names(cuda: Gpu) -> None:
    assert torch.device("cuda") != torch.device("cuda:0")
    assert torch.device("cuda").index is None
    assert torch.zeros(1, device="cuda").device == torch.device("cuda:0")
    assert torch.zeros(1, device="cuda").device != torch.device("cuda")
    assert str(torch.device(0)) == "cuda:0"


@program("torch docs: torch.cuda.device, torch.cuda.device_of")
def test_device_contexts_of_torch_cuda(cuda: Gpu) -> None:
    x = torch.zeros(1, device="cuda")
    with torch.cuda.device(0):
        assert torch.cuda.current_device() == 0
        assert torch.zeros(1).device.type == "cpu"  # it chooses the GPU, not the kind of device
        assert torch.zeros(1, device="cuda").device == CUDA
    with torch.cuda.device_of(x), torch.cuda.device(x.device), torch.cuda.device("cuda:0"), torch.cuda.device(-1):
        assert torch.cuda.current_device() == 0


@program("torch docs: nn.Module.cuda, nn.Module.to: parameters are moved in place")
def test_a_module_keeps_its_parameters_when_it_moves(cuda: Gpu) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    before = [id(parameter) for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert model.to("cuda") is model
    assert [id(parameter) for parameter in model.parameters()] == before
    assert all(parameter.is_cuda and parameter.is_leaf for parameter in model.parameters())
    assert all(buffer.is_cuda for buffer in model.buffers())
    model(torch.ones(4, 2, device="cuda")).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.is_cuda for parameter in model.parameters())
    optimizer.step()
    model.cpu()
    assert all(not parameter.is_cuda and not parameter.grad.is_cuda for parameter in model.parameters())


@program("torch docs: nn.Module.to: casts floating-point parameters and buffers only")
def test_a_module_casts_floating_point_only(cuda: Gpu) -> None:
    model = nn.BatchNorm1d(3).to("cuda", torch.float16)
    assert model.weight.dtype == model.running_mean.dtype == torch.float16
    assert model.num_batches_tracked.dtype == torch.int64
    assert nn.Linear(2, 2).cuda().half().weight.dtype == torch.float16
    assert nn.Linear(2, 2, device="cuda", dtype=torch.float64).weight.type() == "torch.cuda.DoubleTensor"


@program("torch/csrc/utils/tensor_numpy.cpp: tensor_to_numpy")
def test_numpy_is_refused(cuda: Gpu) -> None:
    import numpy

    x = torch.ones(2, device="cuda")
    text = (
        r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\) to copy the tensor to host memory first."
    )
    for convert in (x.numpy, lambda: numpy.asarray(x), lambda: numpy.array(x), lambda: numpy.add(1, x)):
        with pytest.raises(TypeError, match=text):
            convert()
    assert x.cpu().numpy().tolist() == x.numpy(force=True).tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="Can't call numpy"):
        torch.ones(2, requires_grad=True).numpy()


@program("torch docs: Tensor.item, Tensor.tolist; Python's number protocol")
def test_values_come_back_as_python_numbers(cuda: Gpu) -> None:
    x = torch.tensor([3.5], device="cuda")
    assert x.item() == float(x) == x[0].tolist() == 3.5
    assert int(x) == 3
    assert bool(x)
    assert x.tolist() == [3.5]
    assert [10, 20, 30][torch.tensor(2, device="cuda")] == 30
    assert len(torch.zeros(4, device="cuda")) == 4
    assert [value.item() for value in torch.arange(3, device="cuda")] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted to Scalar"):
        torch.zeros(2, device="cuda").item()


@program("c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize, addresses are multiples of 512")
def test_data_pointers_are_aligned_and_shared_by_views(cuda: Gpu) -> None:
    x = torch.zeros(100, device="cuda")
    y = torch.zeros(3, device="cuda")
    assert x.data_ptr() % 512 == y.data_ptr() % 512 == 0
    assert x.data_ptr() != y.data_ptr()
    assert x[10:].data_ptr() == x.data_ptr() + 40
    assert x.view(10, 10).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.zeros(0, device="cuda").data_ptr() == 0


@program("torch docs: Autograd mechanics; Tensor.to is differentiable")
def test_gradients_cross_devices(cuda: Gpu) -> None:
    host = torch.ones(3, requires_grad=True)
    (host.to("cuda") * 2).sum().backward()
    assert host.grad.device.type == "cpu"
    assert host.grad.tolist() == [2.0, 2.0, 2.0]
    device = torch.ones(3, device="cuda", requires_grad=True)
    (device.cpu().double() * 3).sum().backward()
    assert device.grad.device == CUDA
    assert device.grad.dtype == torch.float32
    assert device.grad.tolist() == [3.0, 3.0, 3.0]


@program("torch/csrc/autograd/python_variable.cpp: THPVariable_set_grad")
def test_a_gradient_must_match_its_tensors_device(cuda: Gpu) -> None:
    weight = torch.zeros(2, device="cuda", requires_grad=True)
    text = "attempting to assign a gradient with device type 'cpu' to a tensor with device type 'cuda'"
    with pytest.raises(RuntimeError, match=text):
        weight.grad = torch.zeros(2)
    weight.grad = torch.ones(2, device="cuda")
    assert weight.grad.device == CUDA


@program("torch docs: torch.cuda legacy tensor types (torch.Tensor documentation)")
def test_legacy_tensor_types(cuda: Gpu) -> None:
    x = torch.cuda.FloatTensor([1.0, 2.0])
    assert x.device == CUDA
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert not isinstance(x.half(), torch.cuda.FloatTensor)
    assert torch.cuda.LongTensor(2, 3).shape == (2, 3)


@program(f"{SEMANTICS}: operations stay on their operands' device")
def test_results_live_where_their_operands_live(cuda: Gpu) -> None:
    x = torch.arange(6.0, device="cuda")
    for result in (
        x + 1, 2 - x, x.view(2, 3).t(), x[1:3], x.sum(), x.new_zeros(2), torch.ones_like(x), x.half(), x > 2,
        torch.stack([x, x]), torch.cat([x, x]), x.unsqueeze(0).expand(2, 6), x.max(0).indices, x.nonzero(),
        torch.where(x > 2, x, 0.0), torch.nn.functional.one_hot(x.long()), x.detach(), x.clone(), x.data,
        *torch.meshgrid(x, x, indexing="ij"), *torch.split(x, 2), torch.einsum("i,i->", x, x), torch.diag(x),
        torch.block_diag(x, x), torch.cartesian_prod(x, x), torch.combinations(x), torch.fft.rfft(x),
        torch.linalg.norm(x), torch.unique(x), torch.histc(x), torch.nn.functional.pad(x, (1, 1)),
    ):  # fmt: skip
        assert result.device == CUDA
        assert result.is_cuda
