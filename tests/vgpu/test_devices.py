"""What the program sees of devices; expectations from the PyTorch documentation (tensor attributes, CUDA semantics)."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import vgpu

CUDA = torch.device("cuda", 0)


def test_cuda_is_available_while_attached(gpu: vgpu.VirtualGPU) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_name() == "Tesla T4"
    assert torch.cuda.get_device_capability() == (7, 5)
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda", 0)])
def test_every_spelling_of_the_device_works(gpu: vgpu.VirtualGPU, device: object) -> None:
    assert torch.zeros(2, device=device).device == CUDA
    assert torch.zeros(2).to(device).device == CUDA


def test_a_second_gpu_is_an_invalid_ordinal(gpu: vgpu.VirtualGPU) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(2, device="cuda:1")


def test_cpu_tensors_stay_on_the_cpu(gpu: vgpu.VirtualGPU) -> None:
    x = torch.ones(3) + 1
    assert x.device == torch.device("cpu")
    assert not x.is_cuda
    assert x.numpy().tolist() == [2.0, 2.0, 2.0]
    assert torch.cuda.memory_allocated() == 0


def test_results_and_views_live_where_their_operands_live(gpu: vgpu.VirtualGPU) -> None:
    x = torch.arange(6.0, device="cuda")
    for result in (x + 1, x.view(2, 3).t(), x[1:3], x.sum(), x.new_zeros(2), torch.ones_like(x), x.half()):
        assert result.device == CUDA
        assert result.is_cuda
    assert not torch.zeros_like(x, device="cpu").is_cuda


def test_a_tensor_prints_its_device(gpu: vgpu.VirtualGPU) -> None:
    assert repr(torch.tensor([1, 2], device="cuda")) == "tensor([1, 2], device='cuda:0')"


def test_the_default_device_and_device_contexts_choose_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    with torch.device("cuda"):
        assert nn.Linear(2, 2).weight.device == CUDA
    torch.set_default_device("cuda")
    assert torch.tensor([1.0]).device == torch.zeros(1).device == CUDA
    torch.set_default_device(None)
    assert torch.zeros(1).device.type == "cpu"


def test_mixing_devices_in_an_elementwise_operation_fails_as_on_cuda(gpu: vgpu.VirtualGPU) -> None:
    expected = r"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    with pytest.raises(RuntimeError, match=expected):
        torch.zeros(2, device="cuda") + torch.zeros(2)


def test_mixing_devices_in_a_product_names_the_argument(gpu: vgpu.VirtualGPU) -> None:
    layer = nn.Linear(2, 2).cuda()
    with pytest.raises(
        RuntimeError, match=r"mat1 is on cpu, different from other tensors on cuda:0 .*wrapper_CUDA_addmm"
    ):
        layer(torch.zeros(1, 2))


def test_a_cpu_scalar_may_meet_gpu_tensors(gpu: vgpu.VirtualGPU) -> None:  # CUDA semantics notes
    result = torch.ones(2, device="cuda") * torch.tensor(3.0)
    assert result.device == CUDA
    assert result.tolist() == [3.0, 3.0]


def test_a_gpu_index_for_a_cpu_tensor_is_refused(gpu: vgpu.VirtualGPU) -> None:  # TensorAdvancedIndexing.cpp
    with pytest.raises(
        RuntimeError, match="indices should be either on cpu or on the same device as the indexed tensor"
    ):
        torch.arange(3)[torch.tensor([0], device="cuda")]
    assert torch.arange(3, device="cuda")[torch.tensor([2])].item() == 2


def test_numpy_is_refused_with_cudas_words(gpu: vgpu.VirtualGPU) -> None:
    with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()"):
        torch.zeros(1, device="cuda").numpy()


def test_copy_between_existing_tensors_crosses_devices(gpu: vgpu.VirtualGPU) -> None:
    target = torch.zeros(3, device="cuda")
    target.copy_(torch.tensor([1.0, 2.0, 3.0]))
    back = torch.empty(3).copy_(target)
    assert (target.device, back.device.type, back.tolist()) == (CUDA, "cpu", [1.0, 2.0, 3.0])
    assert [kernel.name for kernel in gpu.timeline if "Memcpy" in kernel.name] == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoH (Device -> Pageable)",
    ]


def test_module_cuda_keeps_the_identity_of_parameters(gpu: vgpu.VirtualGPU) -> None:  # nn.Module.cuda
    layer = nn.Linear(2, 2)
    before = [id(parameter) for parameter in layer.parameters()]
    layer.cuda()
    assert [id(parameter) for parameter in layer.parameters()] == before
    assert layer.weight.device == CUDA
    assert layer.weight.is_leaf


def test_gradients_cross_devices_backwards(gpu: vgpu.VirtualGPU) -> None:
    x = torch.ones(2, requires_grad=True)
    (x.cuda() * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [3.0, 3.0]


def test_a_saved_gpu_tensor_comes_back_on_the_gpu(gpu: vgpu.VirtualGPU) -> None:  # torch.load
    file = io.BytesIO()
    torch.save({"x": torch.ones(2, device="cuda"), "y": torch.ones(2)}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert (loaded["x"].device, loaded["y"].device.type) == (CUDA, "cpu")
    file.seek(0)
    assert torch.load(file, map_location="cpu")["x"].device.type == "cpu"


def test_a_cpu_checkpoint_can_be_loaded_to_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    assert torch.load(file, map_location="cuda").device == CUDA


def test_pickle_and_deepcopy_keep_the_device(gpu: vgpu.VirtualGPU) -> None:
    layer = nn.Linear(2, 2).cuda()
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert copied.weight.device == CUDA
        assert torch.equal(copied.weight, layer.weight)
        assert copied.weight.data_ptr() != layer.weight.data_ptr()


def test_pinned_memory_is_marked(gpu: vgpu.VirtualGPU) -> None:
    assert torch.zeros(2).pin_memory().is_pinned()
    assert torch.zeros(2, pin_memory=True).is_pinned()
    assert not torch.zeros(2).is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.zeros(2, device="cuda").pin_memory()


def test_the_type_of_a_tensor_names_cuda(gpu: vgpu.VirtualGPU) -> None:
    assert torch.zeros(2, device="cuda").type() == "torch.cuda.FloatTensor"
    assert torch.zeros(2).type("torch.cuda.HalfTensor").dtype == torch.float16


def test_the_gpu_has_a_generator_of_its_own(gpu: vgpu.VirtualGPU) -> None:  # torch.cuda.manual_seed
    torch.manual_seed(7)
    first_gpu, first_cpu = torch.randn(3, device="cuda"), torch.randn(3)
    torch.manual_seed(7)
    torch.randn(100)
    assert torch.equal(torch.randn(3, device="cuda"), first_gpu)
    torch.manual_seed(7)
    torch.randn(100, device="cuda")
    assert torch.equal(torch.randn(3), first_cpu)


def test_rng_state_restores_dropout(gpu: vgpu.VirtualGPU) -> None:  # torch.cuda.get_rng_state
    x = torch.ones(64, device="cuda")
    state = torch.cuda.get_rng_state()
    first = torch.nn.functional.dropout(x, 0.5)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.nn.functional.dropout(x, 0.5), first)


def test_a_cpu_generator_is_refused_on_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(2, device="cuda", generator=torch.Generator())
    generator = torch.Generator(device="cuda").manual_seed(1)
    assert torch.randn(2, device="cuda", generator=generator).device == CUDA


def test_in_place_changes_through_a_view_reach_the_base(gpu: vgpu.VirtualGPU) -> None:
    x = torch.zeros(3, 3, device="cuda")
    x[0].add_(1)
    x.t()[1, 1] = 5
    assert x.sum().item() == 8


def test_a_storage_is_made_on_a_gpu(gpu: vgpu.VirtualGPU) -> None:
    storage = torch.UntypedStorage(1000, device="cuda")
    assert str(storage.device) == "cuda:0"
    assert torch.cuda.memory_allocated() == 1024
    assert torch.UntypedStorage([1, 2, 3]).device.type == "cpu"
    assert list(torch.UntypedStorage([1, 2, 3], device="cuda").cpu()) == [1, 2, 3]
    del storage
    assert torch.cuda.memory_allocated() == 0


def test_a_module_follows_a_tensor_to_its_device(gpu: vgpu.VirtualGPU) -> None:
    example = torch.ones(1, dtype=torch.float64, device="cuda")
    model = torch.nn.Linear(2, 2).to(example)
    assert (model.weight.device, model.weight.dtype) == (CUDA, torch.float64)
    assert model.to(torch.ones(1)).weight.device.type == "cpu"
    packed: Any = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    assert packed.to(example).data.device == CUDA


def test_a_sequence_of_indices_is_on_the_tensors_device(gpu: vgpu.VirtualGPU) -> None:
    values: Any
    indices: list[Any] = [
        [0, 3], (slice(None), [1, 2]), [[0, 1], [2, 3]], (slice(None), [[0, 1], [2, 3]]), [True, False, True, False],
        (..., range(2)), (1, (0, 2)), [], (None, [1]),
    ]  # fmt: skip
    for index in indices:
        for values in (-1.0, torch.tensor(-1.0), torch.tensor(-1.0, device="cuda")):
            here, plain = torch.arange(16.0).reshape(4, 4).cuda(), torch.arange(16.0).reshape(4, 4)
            here[index] = values
            plain[index] = values if isinstance(values, float) else values.cpu()
            assert here.is_cuda
            assert here.tolist() == plain.tolist(), (index, values)
