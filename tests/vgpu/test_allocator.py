"""The caching allocator; every expectation from c10/cuda/CUDACachingAllocator.cpp (constants and rules named there)."""

from __future__ import annotations

import pytest
import torch

import vgpu
from vgpu.runtime.memory.allocator import CachingAllocator, OutOfMemory

MIB = 1 << 20


def _bytes(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def test_requests_are_rounded_up_to_512_bytes(shapes: vgpu.VirtualGPU) -> None:
    _x = _bytes(1)
    assert torch.cuda.memory_allocated() == 512
    _y = _bytes(513)
    assert torch.cuda.memory_allocated() == 512 + 1024


def test_small_requests_share_a_segment_of_2_mib(shapes: vgpu.VirtualGPU) -> None:
    _x, _y = _bytes(MIB), _bytes(MIB)
    assert torch.cuda.memory_reserved() == 2 * MIB


def test_medium_requests_open_a_segment_of_20_mib(shapes: vgpu.VirtualGPU) -> None:
    _x = _bytes(MIB + 1)
    assert torch.cuda.memory_reserved() == 20 * MIB
    assert torch.cuda.memory_allocated() == MIB + 512


def test_requests_from_10_mib_are_rounded_up_to_2_mib(shapes: vgpu.VirtualGPU) -> None:
    _x = _bytes(11 * MIB)
    assert torch.cuda.memory_reserved() == 12 * MIB
    # The last MiB is too small to be split off (should_split: more than kSmallSize must remain).
    assert torch.cuda.memory_allocated() == 12 * MIB


def test_a_freed_block_is_used_again_without_a_new_segment(shapes: vgpu.VirtualGPU) -> None:
    x = _bytes(30 * MIB)
    del x
    _y = _bytes(30 * MIB)
    assert torch.cuda.memory_reserved() == 30 * MIB
    assert torch.cuda.memory_stats()["segment.all.allocated"] == 1


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator(1 << 40)
    large, small = allocator.malloc(40 * MIB), allocator.malloc(20 * MIB)
    address = small.address
    allocator.free(large)
    allocator.free(small)
    assert allocator.malloc(15 * MIB).address == address


def test_a_large_block_is_split_only_when_more_than_1_mib_remains() -> None:  # should_split
    allocator = CachingAllocator(1 << 40)
    allocator.free(allocator.malloc(20 * MIB))
    assert allocator.malloc(19 * MIB).bytes == 20 * MIB
    allocator.free(allocator.malloc(40 * MIB))
    assert allocator.malloc(38 * MIB).bytes == 38 * MIB


def test_freed_neighbours_are_merged() -> None:  # try_merge_blocks
    allocator = CachingAllocator(1 << 40)
    blocks = [allocator.malloc(4 * MIB) for _ in range(5)]
    assert allocator.current("reserved_bytes") == 20 * MIB
    for block in (blocks[1], blocks[3], blocks[2]):
        allocator.free(block)
    assert allocator.malloc(12 * MIB).address == blocks[1].address
    assert allocator.current("reserved_bytes") == 20 * MIB


def test_empty_cache_keeps_segments_that_are_still_in_use(shapes: vgpu.VirtualGPU) -> None:
    x, _y, z = _bytes(4 * MIB), _bytes(4 * MIB), _bytes(30 * MIB)
    del x, z
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 20 * MIB
    assert torch.cuda.memory_allocated() == 4 * MIB


def test_streams_have_pools_of_their_own(shapes: vgpu.VirtualGPU) -> None:  # CUDA semantics: memory management
    x = _bytes(30 * MIB)
    del x
    with torch.cuda.stream(torch.cuda.Stream()):
        _y = _bytes(30 * MIB)
    assert torch.cuda.memory_reserved() == 60 * MIB


def test_cached_segments_are_given_back_before_an_allocation_fails() -> None:  # release_cached_blocks
    allocator = CachingAllocator(100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    assert allocator.current("reserved_bytes") == 80 * MIB
    assert allocator.retries == 1


def test_an_allocation_that_does_not_fit_counts_as_an_oom() -> None:
    allocator = CachingAllocator(10 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(11 * MIB)
    assert allocator.ooms == 1


def test_inactive_splits_are_counted() -> None:  # net_change_inactive_split_*
    allocator = CachingAllocator(1 << 40)
    block = allocator.malloc(4 * MIB)
    assert allocator.current("inactive_split_bytes") == 16 * MIB
    allocator.free(block)
    assert allocator.current("inactive_split_bytes") == 0


def test_everything_freed_leaves_nothing_allocated() -> None:
    allocator = CachingAllocator(1 << 40)
    sizes = [(7919 * step) % (3 * MIB) + 1 for step in range(300)]
    blocks = [allocator.malloc(size) for size in sizes]
    assert allocator.current("requested_bytes") == sum(sizes)
    for block in blocks[::2] + blocks[1::2]:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.current("allocated_bytes") == allocator.current("reserved_bytes") == 0
    assert allocator.current("inactive_split_bytes") == allocator.current("inactive_split") == 0
