"""Options of the allocator, blocks that other streams use, and snapshots (c10/cuda/CUDACachingAllocator.cpp)."""

from __future__ import annotations

import itertools
import pickle
import random
from pathlib import Path

import pytest
import torch

import vgpu
from vgpu.runtime.memory.allocator import CachingAllocator, OutOfMemory
from vgpu.runtime.memory.allocator_settings import AllocatorSettings, from_environment, parse
from vgpu.runtime.memory.expandable import ExpandableAllocator

MIB = 1 << 20


def _bytes(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="cuda")


# ---- record_stream: "ensures that the block is not reused before each recorded stream completes work" ---------------


def test_memory_in_use_on_another_stream_is_not_reused(shapes: vgpu.VirtualGPU) -> None:
    side = torch.cuda.Stream()
    x = torch.empty(64 * MIB, dtype=torch.float32, device="cuda")
    address = x.data_ptr()
    with torch.cuda.stream(side):
        for _ in range(50):
            x.add_(1)
    x.record_stream(side)
    size = x.nbytes
    del x
    # The tensor is gone, its block is not: it stays active until the side stream has passed this point.
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == size
    y = torch.empty(64 * MIB, dtype=torch.float32, device="cuda")
    assert y.data_ptr() != address
    assert torch.cuda.memory_reserved() == 2 * size
    torch.cuda.synchronize()
    z = torch.empty(64 * MIB, dtype=torch.float32, device="cuda")
    assert z.data_ptr() == address
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] == 2 * size
    assert torch.cuda.memory_reserved() == 2 * size


def test_without_record_stream_the_block_is_free_at_once(shapes: vgpu.VirtualGPU) -> None:
    x = _bytes(64 * MIB)
    address = x.data_ptr()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)
    del x
    assert _bytes(64 * MIB).data_ptr() == address


def test_recording_the_tensors_own_stream_changes_nothing(shapes: vgpu.VirtualGPU) -> None:
    x = _bytes(64 * MIB)
    x.record_stream(torch.cuda.current_stream())
    del x
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0


def test_running_out_waits_for_the_other_stream() -> None:  # synchronize_and_free_events
    with vgpu.attach("T4", values=False) as gpu:
        x = _bytes(10 << 30)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            x.add_(1)
        x.record_stream(side)
        ready = gpu.queue.ready_at(side.stream_id)
        del x
        _y = _bytes(12 << 30)
        assert gpu.now() >= ready
        assert torch.cuda.memory_stats()["num_sync_all_streams"] == 1
        assert torch.cuda.memory_stats()["num_alloc_retries"] == 1
        assert torch.cuda.memory_stats()["num_ooms"] == 0


# ---- options --------------------------------------------------------------------------------------------------------


def test_options_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:False"
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        settings = parse(from_environment({name: text}))
        assert settings.max_split_bytes == 64 * MIB
        assert settings.divisions[:11] == (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32")
    with vgpu.attach("T4", values=False):
        assert torch.cuda.memory_stats() == {}  # as long as CUDA is not initialised
        torch.cuda.init()
        assert torch.cuda.memory_stats()["max_split_size"] == 32 * MIB


@pytest.mark.parametrize(("text", "message"), [
    ("max_split_size_mb:20", "max_split_size_mb too small, must be > 20"),
    ("no_such_option:1", "Unrecognized key 'no_such_option' in CUDA allocator config."),
    ("expandable_segments:yes", "Expected a single True/False argument for expandable_segments"),
    ("roundup_power2_divisions:3", "the divisions has to be power of 2"),
])  # fmt: skip
def test_options_are_checked_as_cuda_does(text: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        parse(text)


def test_an_option_that_is_not_modelled_is_reported() -> None:
    with pytest.warns(UserWarning, match="does not model the allocator option garbage_collection_threshold"):
        assert parse("garbage_collection_threshold:0.8") == AllocatorSettings()


def test_sizes_can_be_rounded_to_divisions_of_powers_of_two() -> None:  # roundup_power2_next_division
    allocator = CachingAllocator(1 << 40, parse("roundup_power2_divisions:4"))
    # 1200 lies between 1024 and 2048, which four divisions of 256 fill: 1280; but small sizes stay multiples of 512.
    assert allocator.malloc(1200).bytes == 1536
    assert allocator.malloc(1200 * 1024).bytes == 1280 * 1024
    assert allocator.malloc(1024 * 1024).bytes == 1024 * 1024


def test_oversize_blocks_are_not_split() -> None:  # max_split_size_mb
    allocator = CachingAllocator(1 << 40, AllocatorSettings(max_split_bytes=64 * MIB))
    allocator.free(allocator.malloc(100 * MIB))
    assert allocator.as_memory_stats()["oversize_segments"] == {"current": 1, "peak": 1, "allocated": 1, "freed": 0}
    # A small request does not get it, one that is nearly as large gets all of it.
    assert allocator.malloc(30 * MIB).bytes == 30 * MIB
    assert allocator.malloc(90 * MIB).bytes == 100 * MIB
    assert allocator.current("reserved_bytes") == 130 * MIB


def test_oversize_blocks_are_released_before_the_whole_cache() -> None:  # release_available_cached_blocks
    allocator = CachingAllocator(300 * MIB, AllocatorSettings(max_split_bytes=64 * MIB))
    blocks = [allocator.malloc(100 * MIB), allocator.malloc(100 * MIB), allocator.malloc(50 * MIB)]
    for block in blocks:
        allocator.free(block)
    allocator.malloc(140 * MIB)
    assert allocator.retries == 0
    # Both went, since one was not enough; the block of 50 MiB stayed.
    assert allocator.current("reserved_bytes") == 190 * MIB


# ---- expandable segments --------------------------------------------------------------------------------------------


def test_an_expandable_segment_grows_by_pages() -> None:
    allocator = ExpandableAllocator(1 << 40)
    small, large = allocator.malloc(1000), allocator.malloc(30 * MIB)
    assert allocator.current("reserved_bytes") == (2 + 40) * MIB
    more = allocator.malloc(15 * MIB)
    # It begins in the page that the one before left half empty.
    assert more.address == large.address + 30 * MIB
    assert allocator.current("reserved_bytes") == (2 + 60) * MIB
    assert small.bytes == 1024


def test_growing_requests_do_not_fragment() -> None:
    """Note [Expandable Segments]: batches that grow leave unusable pieces in ordinary segments."""

    def reserved(allocator: CachingAllocator) -> int:
        for step in range(20):
            blocks = [allocator.malloc((40 + step) * MIB) for _ in range(5)]
            for block in blocks:
                allocator.free(block)
        return allocator.current("reserved_bytes")

    needed = 5 * 59 * MIB
    assert reserved(ExpandableAllocator(1 << 40)) <= needed + 20 * MIB
    assert reserved(CachingAllocator(1 << 40)) > 2 * needed


def test_free_pages_between_used_ones_are_given_back() -> None:
    allocator = ExpandableAllocator(1 << 40)
    blocks = [allocator.malloc(40 * MIB) for _ in range(3)]
    allocator.free(blocks[1])
    assert allocator.empty_cache() == 40 * MIB
    assert allocator.current("reserved_bytes") == 80 * MIB
    again = allocator.malloc(20 * MIB)
    assert again.address == blocks[1].address
    assert allocator.current("reserved_bytes") == 100 * MIB


def test_a_request_may_fill_a_hole_and_go_on_behind() -> None:
    allocator = ExpandableAllocator(200 * MIB)
    first, second = allocator.malloc(60 * MIB), allocator.malloc(60 * MIB)
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.malloc(130 * MIB).address == second.address
    with pytest.raises(OutOfMemory):
        allocator.malloc(30 * MIB)
    allocator.free(first)


@pytest.mark.parametrize("kind", [CachingAllocator, ExpandableAllocator])
def test_any_order_of_use_leaves_nothing_behind(kind: type[CachingAllocator]) -> None:
    allocator, chooser = kind(4 << 30), random.Random(0)
    held = []
    for _ in range(3000):
        if held and chooser.random() < 0.5:
            allocator.free(held.pop(chooser.randrange(len(held))))
        else:
            held.append(allocator.malloc(chooser.choice((100, 5000, MIB, 3 * MIB, 17 * MIB)), chooser.randrange(2)))
        if chooser.random() < 0.02:
            allocator.empty_cache()
    spans = sorted((block.address, block.address + block.bytes) for block in held)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert allocator.current("allocated_bytes") == sum(block.bytes for block in held)
    assert allocator.current("reserved_bytes") >= allocator.current("allocated_bytes")
    for block in held:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.current("allocated_bytes") == allocator.current("reserved_bytes") == 0


def test_a_program_can_switch_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with vgpu.attach("T4", values=False):
        _x = _bytes(30 * MIB)
        assert torch.cuda.memory_reserved() == 40 * MIB
        assert torch.cuda.memory_snapshot()[0]["is_expandable"]


# ---- snapshots ------------------------------------------------------------------------------------------------------


def test_a_snapshot_lists_segments_and_their_blocks(shapes: vgpu.VirtualGPU) -> None:
    x, _y = _bytes(3 * MIB), _bytes(1000)
    segments = {segment["segment_type"]: segment for segment in torch.cuda.memory_snapshot()}
    large = segments["large"]
    assert (large["total_size"], large["allocated_size"], large["device"]) == (20 * MIB, 3 * MIB, 0)
    assert [(block["size"], block["state"]) for block in large["blocks"]] == [
        (3 * MIB, "active_allocated"), (17 * MIB, "inactive"),
    ]  # fmt: skip
    assert large["address"] == x.data_ptr()
    assert segments["small"]["blocks"][0]["requested_size"] == 1000


def test_a_history_can_be_written_for_the_viewer(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history(max_entries=1000)
    x = _bytes(3 * MIB)
    address = x.data_ptr()
    del x
    torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    torch.cuda.memory._record_memory_history(enabled=None)
    with (tmp_path / "snapshot.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    events = [(event["action"], event["addr"], event["size"]) for event in snapshot["device_traces"][0]]
    assert events == [
        ("alloc", address, 3 * MIB), ("free_requested", address, 3 * MIB), ("free_completed", address, 3 * MIB),
    ]  # fmt: skip
    assert "vgpu" in snapshot["allocator_settings"]["simulated_by"]


def test_the_summary_has_every_figure(shapes: vgpu.VirtualGPU) -> None:
    _x = _bytes(3 * MIB)
    text = torch.cuda.memory_summary()
    for line in ("Active memory", "Oversize allocations", "GPU reserved memory", "Non-releasable memory"):
        assert line in text
    stats = torch.cuda.memory_stats()
    assert stats["active.all.current"] == 1
    assert stats["requested_bytes.large_pool.current"] == 3 * MIB
    assert stats["inactive_split_bytes.all.current"] == 17 * MIB
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
