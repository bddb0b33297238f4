"""Copies between host and device: what is faster than what, and what overlaps with what."""

from __future__ import annotations

import torch

from tests.conformance.machine import Gpu
from tests.conformance.measure import MIB, cycles_for, device_seconds, host_seconds
from tests.conformance.programs import program

PINNED = "CUDA C++ Best Practices Guide: Pinned Memory"
PIN_TUTORIAL = "PyTorch tutorial: A guide on good usage of non_blocking and pin_memory()"


def least(call: object) -> float:
    return min(host_seconds(call, finish=True) for _ in range(3))  # type: ignore[arg-type]


@program(PINNED)
def test_pinned_memory_is_faster(cuda: Gpu) -> None:
    pageable = torch.ones(32 * MIB)
    pinned = pageable.pin_memory()
    target = torch.empty(32 * MIB, device="cuda")
    target.copy_(pageable)
    assert least(lambda: target.copy_(pinned)) < 0.9 * least(lambda: target.copy_(pageable))


@program("CUDA C++ Best Practices Guide: Data Transfer Between Host and Device")
def test_larger_copies_take_longer_and_pay_the_latency_once(cuda: Gpu) -> None:
    parts = [torch.ones(16, pin_memory=True) for _ in range(200)]
    whole = torch.ones(16 * 200, pin_memory=True)
    large = torch.ones(16 * MIB, pin_memory=True)
    for tensor in (*parts, whole, large):
        tensor.cuda()

    def separately() -> None:
        for part in parts:
            part.cuda()

    assert least(separately) > 5 * least(lambda: whole.cuda())
    assert least(lambda: large.cuda()) > 5 * least(lambda: whole.cuda())


@program("NVIDIA datasheets: memory bandwidth against PCIe")
def test_copies_within_the_gpu_are_faster_than_across(cuda: Gpu) -> None:
    pinned = torch.ones(16 * MIB, pin_memory=True)
    gpu, target = pinned.cuda(), torch.empty(16 * MIB, device="cuda")
    within = device_seconds(lambda: target.copy_(gpu))
    across = device_seconds(lambda: target.copy_(pinned, non_blocking=True))
    assert within < 0.5 * across


@program(f"{PIN_TUTORIAL}; CUDA C++ Best Practices Guide: Overlapping Transfers with Computation")
def test_a_copy_overlaps_with_a_kernel(cuda: Gpu) -> None:
    pinned = torch.ones(16 * MIB, pin_memory=True)
    target = torch.empty(16 * MIB, device="cuda")
    side = torch.cuda.Stream()

    def copy() -> None:
        for _ in range(4):
            target.copy_(pinned, non_blocking=True)

    copy()
    alone = least(copy)
    cycles = cycles_for(alone)

    def both(stream: torch.cuda.Stream) -> None:
        torch.cuda._sleep(cycles)
        with torch.cuda.stream(stream):
            copy()

    in_turn = least(lambda: both(torch.cuda.default_stream()))
    assert least(lambda: both(side)) < 0.8 * in_turn


@program(PIN_TUTORIAL)
def test_several_copies_may_be_under_way(cuda: Gpu) -> None:
    pinned = [torch.full((4 * MIB,), float(number), pin_memory=True) for number in range(4)]
    issued = host_seconds(lambda: [tensor.to("cuda", non_blocking=True) for tensor in pinned])
    torch.cuda.synchronize()
    finished = least(lambda: [tensor.to("cuda", non_blocking=True) for tensor in pinned])
    assert issued < finished or issued < 0.01
    moved = [tensor.to("cuda", non_blocking=True) for tensor in pinned]
    assert [tensor[0].item() for tensor in moved] == [0, 1, 2, 3]


@program("PyTorch notes: a prefetching loader, record_stream")
def test_a_prefetcher_hides_the_copies(cuda: Gpu) -> None:
    batches = [torch.ones(4 * MIB, pin_memory=True) for _ in range(4)]
    side = torch.cuda.Stream()
    batches[0].cuda()
    cycles = cycles_for(least(lambda: batches[0].cuda()))

    def plain() -> float:
        total = torch.zeros((), device="cuda")
        for batch in batches:
            moved = batch.cuda(non_blocking=True)
            torch.cuda._sleep(cycles)
            total = total + moved[0]
        return total.item()

    def prefetched() -> float:
        total = torch.zeros((), device="cuda")

        def fetch(number: int) -> torch.Tensor | None:
            if number == len(batches):
                return None
            with torch.cuda.stream(side):
                return batches[number].cuda(non_blocking=True)

        following = fetch(0)
        for number in range(len(batches)):
            torch.cuda.current_stream().wait_stream(side)
            moved = following
            assert moved is not None
            moved.record_stream(torch.cuda.current_stream())
            following = fetch(number + 1)
            torch.cuda._sleep(cycles)
            total = total + moved[0]
        return total.item()

    assert plain() == prefetched() == 4.0
    assert least(prefetched) < 0.9 * least(plain)
