"""Page-locked host memory: who has it, and what it allows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.conformance.machine import Gpu
from tests.conformance.measure import MIB, waits
from tests.conformance.programs import program

PINNED = "torch docs: Tensor.pin_memory, Tensor.is_pinned"
LOADING = "torch docs: torch.utils.data, Memory Pinning"
SEMANTICS = "PyTorch CUDA semantics notes: Use pinned memory buffers"


@program(PINNED)
def test_pinned_tensors_say_so(cuda: Gpu) -> None:
    pageable = torch.ones(3)
    pinned = pageable.pin_memory()
    assert not pageable.is_pinned()
    assert pinned.is_pinned()
    assert pinned.device.type == "cpu"
    assert pinned.data_ptr() != pageable.data_ptr()
    assert pinned.pin_memory() is pinned
    assert pinned[1:].is_pinned()
    assert pinned.numpy().tolist() == [1, 1, 1]
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.zeros(3, pin_memory=True).is_pinned()
    assert torch.tensor([1.0], pin_memory=True).is_pinned()
    assert not (pinned + 1).is_pinned()
    assert not pinned.clone().is_pinned()


@program("aten/src/ATen/native/Memory.cpp: only dense CPU tensors can be pinned")
def test_a_gpu_tensor_cannot_be_pinned(cuda: Gpu) -> None:
    x = torch.zeros(2, device="cuda")
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"):
        x.pin_memory()
    assert not x.is_pinned()
    with pytest.raises(RuntimeError, match=r"[Oo]nly dense CPU tensors can be pinned"):
        torch.empty(2, device="cuda", pin_memory=True)


@program(SEMANTICS)
def test_pinned_memory_is_no_gpu_memory(cuda: Gpu) -> None:
    before = torch.cuda.memory_allocated()
    pinned = torch.empty(MIB, pin_memory=True)
    assert torch.cuda.memory_allocated() == before
    assert pinned.cuda().device.type == "cuda"
    assert torch.cuda.max_memory_allocated() >= before + 4 * MIB


@program(LOADING)
def test_a_loader_pins_its_batches(cuda: Gpu) -> None:
    data = TensorDataset(torch.arange(6.0).view(6, 1), torch.arange(6))
    for inputs, labels in DataLoader(data, batch_size=4, pin_memory=True):
        assert inputs.is_pinned()
        assert labels.is_pinned()
        assert inputs.to("cuda", non_blocking=True).sum().item() == labels.sum().item()
    inputs, _ = next(iter(DataLoader(data, batch_size=4)))
    assert not inputs.is_pinned()


@program(f"{LOADING}: maps, sequences, and a custom type's pin_memory method")
def test_a_loader_pins_nested_and_custom_batches(cuda: Gpu) -> None:
    @dataclass
    class Batch:
        values: torch.Tensor

        def pin_memory(self) -> Batch:
            self.values = self.values.pin_memory()
            return self

    def collate(items: list[float]) -> dict[str, object]:
        values = torch.tensor(items)
        return {"plain": values, "nested": [values + 1, (values + 2,)], "custom": Batch(values + 3), "name": "batch"}

    batch = next(iter(DataLoader([1.0, 2.0], batch_size=2, collate_fn=collate, pin_memory=True)))
    assert batch["plain"].is_pinned()
    assert batch["nested"][0].is_pinned()
    assert batch["nested"][1][0].is_pinned()
    assert batch["custom"].values.is_pinned()
    assert batch["name"] == "batch"


@program(f"{SEMANTICS}: non_blocking=True with pinned memory is asynchronous")
def test_a_pinned_copy_to_the_gpu_does_not_wait(cuda: Gpu) -> None:
    pinned = torch.ones(MIB, pin_memory=True)
    assert not waits(lambda: pinned.to("cuda", non_blocking=True))
    assert not waits(lambda: pinned.cuda(non_blocking=True))
    target = torch.empty(MIB, device="cuda")
    assert not waits(lambda: target.copy_(pinned, non_blocking=True))


@program("aten/src/ATen/native/cuda/Copy.cu: a blocking copy synchronises the stream")
def test_a_blocking_copy_waits(cuda: Gpu) -> None:
    pinned, gpu = torch.ones(MIB, pin_memory=True), torch.ones(MIB, device="cuda")
    assert waits(lambda: pinned.to("cuda"))
    assert waits(lambda: torch.ones(4).cuda())
    assert waits(lambda: gpu.cpu())
    assert waits(lambda: torch.empty(MIB).copy_(gpu))
    assert waits(lambda: gpu.to("cpu", torch.float64))


@program("aten/src/ATen/native/TensorConversions.cpp: _to_copy: a non-blocking copy to the CPU is pinned")
def test_a_non_blocking_copy_to_the_host_lands_in_pinned_memory(cuda: Gpu) -> None:
    gpu = torch.full((MIB,), 3.0, device="cuda")
    assert gpu.to("cpu", non_blocking=True).is_pinned()
    assert not gpu.to("cpu").is_pinned()
    assert not waits(lambda: gpu.to("cpu", non_blocking=True))
    buffer = torch.empty(MIB, pin_memory=True)
    assert not waits(lambda: buffer.copy_(gpu, non_blocking=True))
    torch.cuda.synchronize()
    assert buffer.sum().item() == 3.0 * MIB
