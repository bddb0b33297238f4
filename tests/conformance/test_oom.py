"""Running out of memory: the error, its text, and going on afterwards."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.measure import MIB, allocated
from tests.conformance.programs import program

FAQ = "PyTorch FAQ: My out of memory exception handler can't allocate memory"
MALLOC = "c10/cuda/CUDACachingAllocator.cpp: malloc"
HUGE = 1 << 50


def take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def limit_to(mebibytes: int) -> None:
    """Allow the process so much of the GPU, and no more."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(mebibytes * MIB / torch.cuda.get_device_properties(0).total_memory)


@program("torch docs: torch.OutOfMemoryError")
def test_the_error_has_its_own_type(cuda: Gpu) -> None:
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
    with pytest.raises(torch.OutOfMemoryError):
        take(HUGE)
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2, 3, device="cuda") @ torch.zeros(2, 3, device="cuda")
    assert not isinstance(caught.value, torch.OutOfMemoryError)


@program(MALLOC)
def test_the_text_says_how_much_was_asked_for_and_what_is_there(cuda: Gpu) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(HUGE)
    text = str(caught.value)
    assert text.startswith("CUDA out of memory. Tried to allocate 1048576.00 GiB. GPU 0 has a total capacity of ")
    for part in (
        " is free. ",
        "this process has ",
        " memory in use. ",
        "Of the allocated memory ",
        " is allocated by PyTorch, and ",
        " is reserved by PyTorch but unallocated.",
        "If reserved but unallocated memory is large try setting",
        "expandable_segments:True to avoid fragmentation.",
        "See documentation for Memory Management",
    ):
        assert part in text


@program(FAQ)
def test_a_program_can_go_on_after_the_error(cuda: Gpu) -> None:
    before = allocated()
    ooms = torch.cuda.memory_stats()["num_ooms"]
    with pytest.raises(RuntimeError, match="out of memory"):
        take(HUGE)
    assert allocated() == before
    assert torch.cuda.memory_stats()["num_ooms"] == ooms + 1
    assert torch.ones(1000, device="cuda").sum().item() == 1000


@program(f"{MALLOC}: release_cached_blocks, then one more try")
def test_cached_memory_is_given_back_before_the_error(cuda: Gpu) -> None:
    limit_to(1000)
    x = take(600 * MIB)
    del x
    assert torch.cuda.memory_reserved() >= 600 * MIB
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    y = take(800 * MIB)
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries + 1
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    assert y.nbytes <= torch.cuda.memory_reserved() < 1000 * MIB


@program("torch docs: torch.cuda.set_per_process_memory_fraction; c10/cuda/CUDACachingAllocator.cpp: ' allowed; '")
def test_the_fraction_limits_the_process(cuda: Gpu) -> None:
    limit_to(200)
    kept = take(100 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match=r"allowed; ") as caught:
        take(150 * MIB)
    assert "Tried to allocate 150.00 MiB." in str(caught.value)
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert take(150 * MIB).nbytes + kept.nbytes == 250 * MIB


@program("c10/cuda/CUDACachingAllocator.cpp: fragmentation: free bytes in several segments are not one block")
def test_fragmented_memory_is_not_enough(cuda: Gpu) -> None:
    limit_to(200)
    torch.cuda.empty_cache()
    kept = [take(9 * MIB) for _ in range(16)]  # two to a segment of 20 MiB
    del kept[::2]
    free = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    assert free > 80 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        take(60 * MIB)
    kept.clear()
    assert take(60 * MIB).nbytes == 60 * MIB


@program(f"{FAQ}: the exception's traceback keeps the stack's tensors")
def test_the_traceback_keeps_tensors_until_the_handler_is_left(cuda: Gpu) -> None:
    start = allocated()

    def step() -> None:
        kept = take(64 * MIB)
        take(HUGE)
        del kept

    retry = False
    try:
        step()
    except torch.OutOfMemoryError:
        assert allocated() - start == 64 * MIB
        retry = True
    assert retry
    gc.collect()
    assert allocated() == start


@program("PyTorch FAQ: out of memory in a training step; torch docs: torch.cuda.empty_cache")
def test_a_smaller_batch_fits(cuda: Gpu) -> None:
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: int) -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(batch, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    step(8)
    limit_to(200)
    batch, tried = 1 << 15, []
    while True:
        tried.append(batch)
        try:
            loss = step(batch)
            break
        except torch.OutOfMemoryError:
            batch //= 2
        optimizer.zero_grad()
        torch.cuda.empty_cache()
    assert 2 <= len(tried) <= 5
    assert loss > 0
    assert step(batch) > 0
    assert torch.cuda.max_memory_reserved() <= 200 * MIB


@program("torch docs: Tensor.backward; CUDA out of memory during backward")
def test_an_error_in_backward_can_be_caught(cuda: Gpu) -> None:
    x = torch.ones(8 * MIB, device="cuda", requires_grad=True)
    y = x * 2
    loss = y.sum()
    torch.cuda.empty_cache()
    limit_to(torch.cuda.memory_reserved() // MIB + 8)
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward()
    assert x.grad is None
    torch.cuda.set_per_process_memory_fraction(1.0)
    (x * 2).sum().backward()
    assert x.grad[0].item() == 2
