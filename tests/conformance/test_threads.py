"""Threads and processes of the program: what they share and what each has for itself."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

CUDA = torch.device("cuda", 0)


def in_thread(call: Callable[[], Any]) -> Any:
    """The result of a call in a thread of its own, or its exception."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@program("PyTorch CUDA semantics notes: tensors are shared by the threads of a process")
def test_threads_share_tensors_and_memory(cuda: Gpu) -> None:
    x = torch.ones(1000, device="cuda")
    made = in_thread(lambda: x * 2)
    assert (made.device, made.sum().item()) == (CUDA, 2000)
    before = torch.cuda.memory_allocated()
    kept = in_thread(lambda: torch.zeros(1 << 20, device="cuda"))
    assert torch.cuda.memory_allocated() == before + kept.nbytes


@program("torch/utils/_device.py: device contexts are thread-local modes")
def test_a_device_context_is_the_threads_own(cuda: Gpu) -> None:
    with torch.device("cuda"):
        assert torch.zeros(1).is_cuda
        assert in_thread(lambda: torch.zeros(1).device.type) == "cpu"


@program("torch docs: torch.autocast: the autocast state is thread-local")
def test_autocast_is_the_threads_own(cuda: Gpu) -> None:
    x = torch.ones(8, 8, device="cuda")
    with torch.autocast("cuda"):
        assert (x @ x).dtype == torch.float16
        assert in_thread(lambda: (x @ x).dtype) == torch.float32


@program("torch docs: torch.no_grad is thread-local")
def test_gradient_mode_is_the_threads_own(cuda: Gpu) -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    with torch.no_grad():
        assert in_thread(lambda: (x * 2).requires_grad)
        assert not (x * 2).requires_grad


@program("c10/cuda/CUDAStream.cpp: current streams are thread-local")
def test_the_current_stream_is_the_threads_own(cuda: Gpu) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        assert in_thread(torch.cuda.current_stream) == torch.cuda.default_stream()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@program("torch docs: Autograd mechanics, Multithreaded Autograd")
def test_threads_may_run_backward_at_the_same_time(cuda: Gpu) -> None:
    weights = [torch.ones(100, device="cuda", requires_grad=True) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda weight: (weight * 3).sum().backward(), weights))
    assert all(weight.grad.sum().item() == 300 for weight in weights)


@program("Python docs: concurrent.futures: an exception is raised where the result is asked for")
def test_an_error_in_a_thread_arrives(cuda: Gpu) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        in_thread(lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        in_thread(lambda: torch.zeros(2, device="cuda") + torch.zeros(2))


@program("CUDA runtime API: cudaDeviceSynchronize waits for all streams of all threads")
def test_results_of_many_threads_are_right(cuda: Gpu) -> None:
    results: list[torch.Tensor] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            value = torch.full((1000,), float(number), device="cuda").cumsum(0)[-1]
            with lock:
                results.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert sorted(value.item() for value in results) == [1000.0 * number for number in range(8)]


class OnTheGpu(Dataset[torch.Tensor]):
    """The classic mistake: a dataset that moves its samples to the GPU inside a worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)]).cuda()


@program("torch/cuda/__init__.py: _lazy_init; PyTorch multiprocessing notes: CUDA in multiprocessing")
def test_a_forked_loader_worker_cannot_use_the_gpu(cuda: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    # How long PyTorch waits for a worker that has failed.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
    torch.zeros(1, device="cuda")
    loader = DataLoader(OnTheGpu(), num_workers=1, multiprocessing_context="fork")
    assert "Cannot re-initialize CUDA in forked subprocess" in failure(loader)


def failure(loader: DataLoader[torch.Tensor]) -> str:
    """What a loader's worker says; nothing of the loader is left afterwards."""
    text = ""
    try:
        list(loader)
    except RuntimeError as error:
        text = str(error)
    gc.collect()
    return text


class OnTheHost(Dataset[torch.Tensor]):
    """What a worker should do: leave the samples on the host."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


@program("torch docs: torch.utils.data: multi-process data loading with pin_memory=True")
def test_loader_workers_make_host_batches(cuda: Gpu) -> None:
    loader = DataLoader(OnTheHost(), batch_size=4, num_workers=2, pin_memory=True, multiprocessing_context="fork")
    total = 0.0
    for batch in loader:
        assert batch.device.type == "cpu"
        assert batch.is_pinned()
        total += batch.cuda(non_blocking=True).sum().item()
    assert total == 28
