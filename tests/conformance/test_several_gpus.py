"""Several GPUs in one process."""

from __future__ import annotations

import io
import time

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.measure import LONG_SECONDS, MIB, cycles_for
from tests.conformance.programs import program

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
SEMANTICS = "PyTorch CUDA semantics notes"


@program(SEMANTICS, gpus=2)
def test_the_current_gpu_is_where_cuda_means(cuda: Gpu) -> None:
    assert torch.cuda.device_count() >= 2
    with torch.cuda.device(1):
        x = torch.tensor([1.0, 2.0], device="cuda")
        y = torch.tensor([1.0, 2.0]).cuda()
        assert torch.cuda.current_device() == 1
        z = torch.randn(2, device=FIRST)
    assert x.device == y.device == (x + y).device == SECOND
    assert z.device == FIRST
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(1)
    assert torch.zeros(1, device="cuda").device == SECOND
    assert torch.accelerator.current_device_index() == 1
    torch.cuda.set_device("cuda:0")
    assert repr(x) == "tensor([1., 2.], device='cuda:1')"


@program("aten/src/ATen/TensorIterator.cpp: compute_types", gpus=2)
def test_tensors_of_two_gpus_do_not_mix(cuda: Gpu) -> None:
    x, y = torch.ones(2, device=FIRST), torch.ones(2, device=SECOND)
    text = "Expected all tensors to be on the same device, but found at least two devices, cuda:{} and cuda:{}!"
    with pytest.raises(RuntimeError, match=text.format(0, 1)):
        x + y
    with pytest.raises(RuntimeError, match=text.format(1, 0)):
        y.add_(x)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        nn.Linear(2, 2).to(FIRST)(y[None])
    assert (x + y.to(x.device)).tolist() == [2, 2]


@program(f"{SEMANTICS}: copies between GPUs", gpus=2)
def test_copies_cross_gpus(cuda: Gpu) -> None:
    x = torch.arange(4.0, device=FIRST)
    y = x.to(SECOND)
    assert (y.device, y.tolist()) == (SECOND, [0, 1, 2, 3])
    x.copy_(y * 2)
    assert (x.device, x.tolist()) == (FIRST, [0, 2, 4, 6])
    assert x.cuda(1).device == x.cuda("cuda:1").device == SECOND
    assert torch.zeros_like(x, device=SECOND).device == SECOND
    weight = torch.ones(4, device=FIRST, requires_grad=True)
    (weight.to(SECOND) * y).sum().backward()
    assert (weight.grad.device, weight.grad.tolist()) == (FIRST, [0, 1, 2, 3])


@program("torch docs: torch.cuda.memory_allocated(device)", gpus=2)
def test_each_gpu_has_its_own_memory(cuda: Gpu) -> None:
    before = [torch.cuda.memory_allocated(index) for index in (0, 1)]
    kept = torch.empty(MIB, device=SECOND)
    assert torch.cuda.memory_allocated(SECOND) - before[1] == kept.nbytes
    assert torch.cuda.memory_allocated(FIRST) == before[0]
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(1) == torch.cuda.memory_allocated(1)
    assert torch.cuda.mem_get_info(1)[1] > 0


@program("torch docs: torch.cuda.Stream(device), torch.cuda.synchronize(device)", gpus=2)
def test_each_gpu_has_its_own_time(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    with torch.cuda.device(1):
        torch.cuda._sleep(cycles)
    start = time.perf_counter()
    torch.cuda.synchronize(0)
    assert time.perf_counter() - start < 0.5 * LONG_SECONDS
    torch.cuda.synchronize(1)
    assert time.perf_counter() - start > 0.3 * LONG_SECONDS
    assert torch.cuda.current_stream(1).device == SECOND
    stream = torch.cuda.Stream(device=SECOND)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


@program("torch docs: torch.cuda.manual_seed_all, get_rng_state(device)", gpus=2)
def test_each_gpu_has_its_own_generator(cuda: Gpu) -> None:
    torch.cuda.manual_seed_all(3)
    first, second = torch.rand(4, device=FIRST), torch.rand(4, device=SECOND)
    assert torch.equal(first.cpu(), second.cpu())
    state = torch.cuda.get_rng_state(1)
    torch.rand(4, device=FIRST)
    assert torch.equal(torch.cuda.get_rng_state(1), state)
    assert torch.Generator(device=SECOND).device == SECOND


@program("torch docs: torch.load, map_location", gpus=2)
def test_a_tensor_of_the_second_gpu_comes_back_there(cuda: Gpu) -> None:
    buffer = io.BytesIO()
    torch.save(torch.ones(2, device=SECOND), buffer)
    for target, device in ((None, SECOND), ({"cuda:1": "cuda:0"}, FIRST), ("cuda:0", FIRST)):
        buffer.seek(0)
        assert torch.load(buffer, map_location=target).device == device


@program("torch docs: nn.DataParallel", gpus=2)
def test_data_parallel_splits_the_batch(cuda: Gpu) -> None:
    parts: list[tuple[torch.device, int]] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts.append((x.device, len(x)))
            return self.linear(x)

    model = nn.DataParallel(Model().cuda(), device_ids=[0, 1])
    x = torch.ones(6, 3, device="cuda")
    result = model(x)
    assert result.device == FIRST
    assert sorted(parts, key=str) == [(FIRST, 3), (SECOND, 3)]
    result.sum().backward()
    assert model.module.linear.bias.grad.tolist() == [6, 6]


@program("PyTorch tutorial: Single-Machine Model Parallel Best Practices", gpus=2)
def test_a_model_may_span_gpus(cuda: Gpu) -> None:
    first, second = nn.Linear(4, 4).to(FIRST), nn.Linear(4, 1).to(SECOND)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = second(first(torch.ones(2, 4, device=FIRST)).to(SECOND)).square().mean()
        loss.backward()
        optimizer.step()
    assert loss.device == SECOND
    assert first.weight.grad.device == FIRST
    assert optimizer.state[second.weight]["exp_avg"].device == SECOND
    norm = nn.utils.clip_grad_norm_([*first.parameters(), *second.parameters()], 1.0)
    assert norm.item() > 0
