"""The first use of everything costs more: context, libraries, and cuDNN's search."""

from __future__ import annotations

import time

import torch

from tests.conformance.machine import Gpu
from tests.conformance.measure import host_seconds
from tests.conformance.programs import program

LAZY = "PyTorch CUDA semantics notes: CUDA is initialised lazily, at the first use"


@program(f"{LAZY}; torch docs: torch.cuda.is_initialized", fresh=True)
def test_cuda_is_initialised_at_its_first_use(cuda: Gpu) -> None:
    assert torch.cuda.memory_allocated() == 0
    x = torch.zeros(1, device="cuda")
    assert torch.cuda.is_initialized()
    assert torch.cuda.memory_allocated() == 512
    del x


@program("cuBLAS documentation: cublasCreate; CUDA lazy module loading", fresh=True)
def test_the_first_product_is_slow(cuda: Gpu) -> None:
    x = torch.ones(256, 256, device="cuda")
    torch.cuda.synchronize()
    first = host_seconds(lambda: x @ x, finish=True)
    later = min(host_seconds(lambda: x @ x, finish=True) for _ in range(5))
    assert first > 5 * later


@program("cuDNN documentation: cudnnCreate; CUDA lazy module loading", fresh=True)
def test_the_first_convolution_is_slow(cuda: Gpu) -> None:
    layer = torch.nn.Conv2d(3, 8, 3).cuda()
    x = torch.ones(1, 3, 32, 32, device="cuda")
    first = host_seconds(lambda: layer(x), finish=True)
    later = min(host_seconds(lambda: layer(x), finish=True) for _ in range(5))
    assert first > 5 * later


@program("torch docs: torch.backends.cudnn.benchmark: algorithms are tried for each new shape")
def test_cudnn_benchmark_tries_algorithms_once_per_shape(cuda: Gpu) -> None:
    layer = torch.nn.Conv2d(8, 8, 3).cuda()
    for size in (32, 40):
        layer(torch.ones(4, 8, size, size, device="cuda"))
    torch.cuda.synchronize()
    torch.backends.cudnn.benchmark = True
    for size in (48, 56):
        x = torch.ones(4, 8, size, size, device="cuda")
        first = host_seconds(lambda x=x: layer(x), finish=True)
        later = min(host_seconds(lambda x=x: layer(x), finish=True) for _ in range(5))
        assert first > 2 * later


@program(f"{LAZY}; CUDA context creation", fresh=True)
def test_the_context_is_slow_and_is_no_allocated_memory(cuda: Gpu) -> None:
    start = time.perf_counter()
    x = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    start = time.perf_counter()
    y = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    assert first > 5 * (time.perf_counter() - start)
    free, total = torch.cuda.mem_get_info()
    assert total - free > torch.cuda.memory_reserved()  # the context is no memory of the allocator
    assert torch.cuda.memory_allocated() == 1024
    del x, y
