"""Copies within the GPU and across: values, types, strides, sharing, deepcopy, pickle."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

CUDA = torch.device("cuda", 0)
COPY = "torch docs: Tensor.copy_: may be on another device and of another type"


@program(COPY)
def test_copy_crosses_devices_and_types(cuda: Gpu) -> None:
    target = torch.zeros(3, device="cuda", dtype=torch.float16)
    assert target.copy_(torch.tensor([1.0, 2.5, -3.0], dtype=torch.float64)) is target
    assert (target.device, target.dtype, target.tolist()) == (CUDA, torch.float16, [1.0, 2.5, -3.0])
    back = torch.empty(3, dtype=torch.int32).copy_(target)
    assert (back.device.type, back.tolist()) == ("cpu", [1, 2, -3])
    target.copy_(torch.tensor(True))
    assert target.tolist() == [1, 1, 1]


@program(f"{COPY}; src must be broadcastable")
def test_copy_broadcasts_and_respects_strides(cuda: Gpu) -> None:
    target = torch.zeros(2, 3, device="cuda")
    target.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert target.tolist() == [[1, 2, 3], [1, 2, 3]]
    target.t()[1].copy_(torch.tensor([8.0, 9.0]))
    assert target.tolist() == [[1, 8, 3], [1, 9, 3]]
    target[:, 0] = torch.tensor([5.0, 6.0])
    assert target[:, 0].tolist() == [5, 6]
    with pytest.raises(RuntimeError, match="must match the size"):
        target.copy_(torch.zeros(4))


@program("PyTorch CUDA semantics notes: a copy has its own memory")
def test_copies_across_devices_share_nothing(cuda: Gpu) -> None:
    host = torch.zeros(2)
    gpu = host.cuda()
    gpu += 1
    again = gpu.cpu()
    again += 1
    assert (host.tolist(), gpu.tolist(), again.tolist()) == ([0, 0], [1, 1], [2, 2])


@program("torch docs: Tensor.to memory_format=torch.preserve_format")
def test_moves_keep_dense_strides(cuda: Gpu) -> None:
    image = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    assert image.cuda().is_contiguous(memory_format=torch.channels_last)
    assert image.cuda().cpu().stride() == image.stride()
    assert torch.arange(6).view(2, 3).t().cuda().stride() == (1, 3)
    assert torch.ones(1).expand(3).cuda().stride() == (1,)
    assert torch.arange(8)[::2].cuda().stride() == (1,)
    model = nn.Conv2d(2, 2, 1).cuda().to(memory_format=torch.channels_last)
    assert model(image.cuda()).is_contiguous(memory_format=torch.channels_last)


@program("aten/src/ATen/native/TensorConversions.cpp: _to_copy allocates what the view needs")
def test_moving_a_view_moves_only_the_view(cuda: Gpu) -> None:
    part = torch.arange(1000.0)[10:20].cuda()
    assert part.untyped_storage().nbytes() == 40
    assert part.storage_offset() == 0
    back = torch.arange(1000.0, device="cuda")[10:20].cpu()
    assert back.untyped_storage().nbytes() == 40
    assert back.tolist() == list(range(10, 20))


@program("torch docs: Tensor views")
def test_views_write_through(cuda: Gpu) -> None:
    x = torch.zeros(2, 3, device="cuda")
    x.t()[0].fill_(4)
    x.view(-1)[5] = 7
    x[:, 1:].add_(1)
    x.detach().mul_(2)
    assert x.tolist() == [[8, 2, 2], [8, 2, 16]]
    x.data = torch.ones(1, device="cuda")
    assert x.tolist() == [1]


@program("torch/_tensor.py: Tensor.__deepcopy__")
def test_deepcopy_stays_on_the_gpu(cuda: Gpu) -> None:
    x = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    x.grad = torch.ones(2, device="cuda")
    made = copy.deepcopy(x)
    assert (made.device, made.requires_grad, made.grad.device) == (CUDA, True, CUDA)
    assert made.data_ptr() != x.data_ptr()
    both = copy.deepcopy([x.detach(), x.detach()[1:]])
    both[0][1] = 9
    assert both[1].tolist() == [9]  # what shared memory shares it still
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(x * 2)
    assert copy.copy(x).data_ptr() == x.data_ptr()


@program("torch docs: nn.Module; copy.deepcopy of a model (as torch.optim.swa_utils.AveragedModel does)")
def test_deepcopy_of_a_module_keeps_tied_weights(cuda: Gpu) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).cuda()
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model)
    assert twin[0].weight is twin[1].weight
    assert twin[0].weight.device == CUDA
    twin[0].weight.data.zero_()
    assert model[0].weight.abs().sum() > 0
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    assert averaged.module[0].weight.device == CUDA


@program("torch/_tensor.py: Tensor.__reduce_ex__; torch docs: Serialization semantics")
def test_pickled_tensors_come_back_on_the_gpu(cuda: Gpu) -> None:
    x = torch.tensor([1, 2], device="cuda")
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        back = pickle.loads(pickle.dumps(x, protocol))
        assert (back.device, back.tolist()) == (CUDA, [1, 2])
        assert back.data_ptr() != x.data_ptr()
    weight = pickle.loads(pickle.dumps(nn.Linear(2, 2).cuda())).weight
    assert weight.device == CUDA
    assert isinstance(weight, nn.Parameter)
    buffer = io.BytesIO()
    pickle.dump({"device": torch.device("cuda"), "x": x}, buffer)
    assert pickle.loads(buffer.getvalue())["device"] == torch.device("cuda")


@program("torch docs: Tensor.resize_, Tensor.set_, UntypedStorage.resize_")
def test_storages_can_be_exchanged_and_resized(cuda: Gpu) -> None:
    x = torch.arange(4.0, device="cuda")
    y = torch.empty(0, device="cuda").set_(x)
    assert y.data_ptr() == x.data_ptr()
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    x.resize_(100)
    assert x.device == CUDA
    assert x[:4].tolist() == [0, 1, 2, 3]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


@program("torch docs: Tensor.clone, Tensor.contiguous, torch.clone(memory_format)")
def test_clones_are_on_the_gpu_and_differentiable(cuda: Gpu) -> None:
    x = torch.ones(2, 3, device="cuda", requires_grad=True)
    y = x.t().clone()
    assert y.stride() == (1, 3)
    assert y.contiguous().stride() == (2, 1)
    assert y.is_cuda
    y.sum().backward()
    assert x.grad.sum().item() == 6
    assert x.detach().data_ptr() == x.data_ptr()
