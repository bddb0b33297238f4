"""The caching allocator: rounding, segments, splitting, reuse, and every way to ask about it."""

from __future__ import annotations

import pytest
import torch

from tests.conformance.machine import Gpu
from tests.conformance.measure import LONG_SECONDS, MIB, allocated, cycles_for, rounded
from tests.conformance.programs import program

ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp"
STATS = "torch docs: torch.cuda.memory_stats"


def take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def reserved_by(*sizes: int) -> tuple[list[torch.Tensor], int]:
    """Tensors of these sizes, and how much more is reserved for them."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    kept = [take(size) for size in sizes]
    return kept, torch.cuda.memory_reserved() - before


@program(f"{ALLOCATOR}: kMinBlockSize = 512")
def test_sizes_are_rounded_to_512_bytes(cuda: Gpu) -> None:
    before = torch.cuda.memory_allocated()
    kept = []
    for size, occupied in ((1, 512), (512, 512), (513, 1024), (1000, 1024), (4096, 4096), (100_001, 100_352)):
        kept.append(take(size))
        assert torch.cuda.memory_allocated() - before == occupied
        before = torch.cuda.memory_allocated()
    kept.append(take(0))
    kept.append(kept[0].view(1, 1))
    assert torch.cuda.memory_allocated() == before


@program(f"{ALLOCATOR}: kSmallSize 1 MiB, kSmallBuffer 2 MiB, kLargeBuffer 20 MiB, kMinLargeAlloc 10 MiB, kRoundLarge")
def test_segments_have_four_kinds_of_size(cuda: Gpu) -> None:
    for size, segment in (
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ):
        kept, reserved = reserved_by(size)
        assert reserved == segment, size
        del kept


@program(f"{ALLOCATOR}: should_split: small blocks are split always, large ones where more than kSmallSize is left")
def test_segments_are_shared_by_splitting(cuda: Gpu) -> None:
    kept, reserved = reserved_by(*[512 * 1024] * 4)
    assert reserved == 2 * MIB
    addresses = [tensor.data_ptr() for tensor in kept]
    assert max(addresses) - min(addresses) < 2 * MIB
    del kept
    kept, reserved = reserved_by(*[512 * 1024] * 5)
    assert reserved == 4 * MIB
    del kept
    kept, reserved = reserved_by(5 * MIB, 5 * MIB, 5 * MIB)
    assert reserved == 20 * MIB
    assert kept[1].data_ptr() - kept[0].data_ptr() == 5 * MIB


@program(f"{ALLOCATOR}: should_split: a remainder of at most kSmallSize stays with a large block")
def test_a_large_block_keeps_a_small_remainder(cuda: Gpu) -> None:
    kept, reserved = reserved_by(9 * MIB + MIB // 2)
    before = torch.cuda.memory_allocated()
    kept.append(take(10 * MIB - 512))
    assert torch.cuda.memory_allocated() - before == 10 * MIB + MIB // 2
    assert reserved == 20 * MIB
    assert torch.cuda.memory_stats()["requested_bytes.all.current"] >= 19 * MIB


@program(f"{ALLOCATOR}: free blocks are kept and reused, best fit first")
def test_freed_memory_is_cached_and_reused(cuda: Gpu) -> None:
    x = take(32 * MIB)
    before, address = torch.cuda.memory_reserved(), x.data_ptr()
    del x
    assert torch.cuda.memory_allocated() < 32 * MIB <= torch.cuda.memory_reserved() == before
    y = take(32 * MIB)
    assert y.data_ptr() == address
    assert torch.cuda.memory_reserved() == before
    del y
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before - 32 * MIB


@program("torch docs: torch.cuda.empty_cache: unoccupied cached memory only")
def test_a_segment_with_a_living_block_is_not_given_back(cuda: Gpu) -> None:
    kept, _ = reserved_by(4 * MIB, 4 * MIB, 4 * MIB)
    before = torch.cuda.memory_reserved()
    del kept[0], kept[0]
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before
    assert torch.cuda.memory_stats()["inactive_split_bytes.all.current"] >= 16 * MIB
    kept.clear()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before - 20 * MIB


@program("torch docs: torch.cuda.max_memory_allocated, reset_peak_memory_stats")
def test_the_peak_is_kept_and_reset(cuda: Gpu) -> None:
    start = allocated()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == start
    x = take(8 * MIB)
    y = take(8 * MIB)
    del y
    assert torch.cuda.max_memory_allocated() - start == 16 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() - start == x.nbytes
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
    with pytest.warns(FutureWarning, match="reset_max_memory_allocated"):
        torch.cuda.reset_max_memory_allocated()


@program("torch docs: torch.cuda.max_memory_allocated; temporaries of an expression")
def test_the_peak_sees_temporaries(cuda: Gpu) -> None:
    x = torch.ones(4 * MIB, device="cuda")
    before = allocated()
    torch.cuda.reset_peak_memory_stats()
    y = (x * 2 + 1).relu_()
    assert torch.cuda.max_memory_allocated() - before == 2 * x.nbytes
    assert torch.cuda.memory_allocated() - before == x.nbytes
    del y
    torch.cuda.reset_peak_memory_stats()
    x.mul_(2).add_(1)
    assert torch.cuda.max_memory_allocated() == before


@program(STATS)
def test_memory_stats_has_the_documented_keys(cuda: Gpu) -> None:
    take(1)
    stats = torch.cuda.memory_stats()
    figures = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
    for figure in (*figures, "allocation", "segment", "active", "inactive_split"):
        for pool in ("all", "large_pool", "small_pool"):
            for metric in ("current", "peak", "allocated", "freed"):
                assert f"{figure}.{pool}.{metric}" in stats
    for figure in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"):
        assert figure in stats
    assert {"max_split_size", "oversize_allocations.current", "oversize_segments.peak"} <= stats.keys()
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == stats["allocated_bytes.all.current"]


@program(STATS)
def test_memory_stats_count_allocations_by_pool(cuda: Gpu) -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats()

    def change(name: str) -> int:
        return int(torch.cuda.memory_stats()[name] - before[name])

    kept = [take(100), take(MIB), take(3 * MIB)]
    assert (change("allocation.small_pool.current"), change("allocation.large_pool.current")) == (2, 1)
    assert change("allocated_bytes.large_pool.current") == 3 * MIB
    assert change("allocated_bytes.small_pool.current") == rounded(100, MIB)
    assert change("requested_bytes.all.current") == 100 + 4 * MIB
    assert change("segment.all.current") == change("num_device_alloc") == 2
    kept.clear()
    assert (change("allocation.all.current"), change("allocation.all.allocated"), change("allocation.all.freed")) == (
        0, 3, 3,
    )  # fmt: skip
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0


@program("torch docs: torch.cuda.memory_summary")
def test_the_summary_is_a_table(cuda: Gpu) -> None:
    kept = take(3 * MIB)
    text = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in text
    for line in (
        "Allocated memory",
        "Active memory",
        "Requested memory",
        "GPU reserved memory",
        "Non-releasable memory",
    ):
        assert line in text
    assert "CUDA OOMs: 0" in text
    assert len(torch.cuda.memory_summary(abbreviated=True)) < len(text)
    assert kept.nbytes == 3 * MIB


@program("torch docs: torch.cuda.memory_snapshot; PyTorch notes: Understanding CUDA Memory Usage")
def test_the_snapshot_lists_segments_and_blocks(cuda: Gpu) -> None:
    torch.cuda.empty_cache()
    kept = [take(100), take(3 * MIB)]
    segments = torch.cuda.memory_snapshot()
    assert sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved()
    assert sum(segment["allocated_size"] for segment in segments) == torch.cuda.memory_allocated()
    assert {segment["segment_type"] for segment in segments} == {"small", "large"}
    blocks = [block for segment in segments for block in segment["blocks"]]
    assert sum(block["size"] for block in blocks) == torch.cuda.memory_reserved()
    active = [block for block in blocks if block["state"] == "active_allocated"]
    assert {kept[0].data_ptr(), kept[1].data_ptr()} <= {block["address"] for block in active}
    assert any(block["requested_size"] == 100 for block in active)


@program("torch docs: torch.cuda.mem_get_info (cudaMemGetInfo)")
def test_free_memory_falls_by_what_is_reserved(cuda: Gpu) -> None:
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total == torch.cuda.get_device_properties(0).total_memory
    kept = take(256 * MIB)
    slack = 16 * MIB  # a driver may need a little more, for example for page tables
    assert free - torch.cuda.mem_get_info()[0] == pytest.approx(kept.nbytes, abs=slack)
    del kept
    assert free - torch.cuda.mem_get_info()[0] == pytest.approx(256 * MIB, abs=slack)  # still reserved
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == pytest.approx(free, abs=slack)


@program(f"{ALLOCATOR}: blocks belong to the stream they were allocated on")
def test_streams_do_not_share_free_blocks(cuda: Gpu) -> None:
    torch.cuda.empty_cache()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = take(32 * MIB)
    address = x.data_ptr()
    del x
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    y = take(32 * MIB)
    assert y.data_ptr() != address
    assert torch.cuda.memory_reserved() == reserved + 32 * MIB
    with torch.cuda.stream(side):
        assert take(32 * MIB).data_ptr() == address


@program("torch docs: Tensor.record_stream; c10/cuda/CUDACachingAllocator.cpp: recordStream, insert_events")
def test_a_recorded_stream_delays_the_reuse(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    side = torch.cuda.Stream()
    x = take(32 * MIB)
    address = x.data_ptr()
    with torch.cuda.stream(side):
        torch.cuda._sleep(cycles)
    x.record_stream(side)
    del x
    stats = torch.cuda.memory_stats()
    assert stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"] == 32 * MIB
    y = take(32 * MIB)
    assert y.data_ptr() != address  # the side stream may still use it
    torch.cuda.synchronize()
    del y
    later = [take(32 * MIB), take(32 * MIB)]
    assert address in {tensor.data_ptr() for tensor in later}


@program("torch docs: Tensor views: a view keeps its base's storage")
def test_a_view_keeps_the_whole_storage(cuda: Gpu) -> None:
    before = allocated()
    x = torch.zeros(4 * MIB, device="cuda")
    y = x[:1]
    del x
    assert allocated() - before == 16 * MIB
    z = y.clone()
    del y
    assert allocated() - before == rounded(z.nbytes)


@program("torch docs: UntypedStorage.resize_; Tensor.data")
def test_a_storage_can_be_emptied(cuda: Gpu) -> None:
    before = allocated()
    x = torch.zeros(4 * MIB, device="cuda")
    x.untyped_storage().resize_(0)
    assert allocated() == before
    y = torch.nn.Parameter(torch.zeros(4 * MIB, device="cuda"))
    y.data = torch.empty(0, device="cuda")
    assert allocated() == before
    z = torch.zeros(10, device="cuda").resize_(MIB)
    assert allocated() - before == z.nbytes


@program("torch docs: torch.cuda.set_per_process_memory_fraction")
def test_the_fraction_is_checked(cuda: Gpu) -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.5)
    for wrong in (1.5, -0.1):
        with pytest.raises(ValueError, match="Invalid fraction value"):
            torch.cuda.set_per_process_memory_fraction(wrong)
    with pytest.raises(TypeError, match="Invalid type for fraction argument, must be `float`"):
        torch.cuda.set_per_process_memory_fraction(1)


@program(
    "torch docs: torch.cuda.caching_allocator_alloc, torch.cuda.get_allocator_backend",
    differs="raw allocations are refused with vgpu.Unsupported",
)
def test_the_allocator_can_be_used_by_itself(cuda: Gpu) -> None:
    before = torch.cuda.memory_allocated()
    address = torch.cuda.caching_allocator_alloc(1000)
    assert torch.cuda.memory_allocated() - before == 1024
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.get_allocator_backend() == "native"


@program("PyTorch CUDA semantics notes: cuBLAS workspaces; aten/src/ATen/cuda/CublasHandlePool.cpp", fresh=True)
def test_the_first_product_takes_a_workspace(cuda: Gpu) -> None:
    x = torch.ones(256, 256, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = x @ x
    workspace = 8_519_680 if cuda.capability[0] < 9 else 32 * MIB
    assert torch.cuda.max_memory_allocated() - before == y.nbytes + workspace
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() - before == y.nbytes


@program("PyTorch CUDA semantics notes: cuBLAS workspaces: one per handle and stream, kept", fresh=True)
def test_workspaces_are_kept_for_each_stream(cuda: Gpu) -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15):
        pytest.skip("since PyTorch 2.15 a workspace is given back after each product")
    x = torch.ones(256, 256, device="cuda")
    before = torch.cuda.memory_allocated()
    kept = [x @ x, x @ x]
    first = torch.cuda.memory_allocated() - before - 2 * x.nbytes
    assert first >= 8_519_680
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        kept.append(x @ x)
    assert torch.cuda.memory_allocated() - before == 2 * first + 3 * x.nbytes
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() - before == 3 * kept[0].nbytes
