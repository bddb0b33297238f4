"""Accounting of PyTorch's caching allocator: which bytes are allocated, cached and reserved. Pure Python, no memory.

A model of `c10/cuda/CUDACachingAllocator.cpp` (constants, pools, best fit, splitting, merging, release of wholly free
segments). Not here: expandable segments, private pools, garbage collection thresholds, and any real memory.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass, field

# CUDACachingAllocator.cpp / CUDAAllocatorConfig.h
MIN_BLOCK_BYTES = 512
SMALL_REQUEST_BYTES = 1 << 20
SMALL_SEGMENT_BYTES = 2 << 20
LARGE_SEGMENT_BYTES = 20 << 20
MIN_LARGE_ALLOCATION_BYTES = 10 << 20
ROUND_LARGE_BYTES = 2 << 20


class OutOfMemory(Exception):
    """A segment does not fit; carries the size in bytes that was asked for."""

    def __init__(self, requested_bytes: int) -> None:
        super().__init__(f"{requested_bytes} bytes do not fit")
        self.requested_bytes = requested_bytes


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment. `requested_bytes` is what the tensor wanted, `bytes` what it occupies."""

    serial: int
    address: int
    bytes: int
    small: bool
    stream: int
    segment_bytes: int
    requested_bytes: int = 0
    allocated: bool = False
    previous: Block | None = None
    next: Block | None = None


@dataclass(slots=True)
class Counter:
    """One figure of `torch.cuda.memory_stats`."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def add(self, amount: int) -> None:
        """The figure changes by `amount`."""
        self.current += amount
        if amount > 0:
            self.allocated += amount
            if self.current > self.peak:
                self.peak = self.current
        else:
            self.freed -= amount


FIGURES = (
    "allocated_bytes", "reserved_bytes", "inactive_split_bytes", "requested_bytes", "allocation", "segment",
    "inactive_split",
)  # fmt: skip
# A block stays active while another stream may still use it; here it is active exactly while it is allocated.
_SAME_FIGURES = {"active_bytes": "allocated_bytes", "active": "allocation"}


@dataclass(slots=True)
class _Pool:
    """Free blocks of one kind and stream, kept in the order (bytes, address) that best fit wants."""

    free: list[tuple[int, int, int, Block]] = field(default_factory=list)

    def insert(self, block: Block) -> None:
        bisect.insort(self.free, (block.bytes, block.address, block.serial, block))

    def remove(self, block: Block) -> None:
        index = bisect.bisect_left(self.free, (block.bytes, block.address, block.serial))
        del self.free[index]

    def best_fit(self, wanted: int) -> Block | None:
        index = bisect.bisect_left(self.free, (wanted,))
        return self.free[index][3] if index < len(self.free) else None


class CachingAllocator:
    """Bytes on one GPU. `capacity_bytes` is what the allocator may reserve (the card less the CUDA context)."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.limit_bytes = capacity_bytes
        self.stats = {name: {pool: Counter() for pool in ("all", "large_pool", "small_pool")} for name in FIGURES}
        self.retries = 0
        self.ooms = 0
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._hot = {
            small: tuple(
                self.stats[figure][pool]
                for figure in ("allocated_bytes", "requested_bytes", "allocation")
                for pool in ("all", "small_pool" if small else "large_pool")
            )
            for small in (True, False)
        }
        self._serial = itertools.count()
        self._next_address = 0x7F00_0000_0000
        self.segments: dict[int, Block] = {}

    def current(self, figure: str) -> int:
        """Current value of a figure over all pools."""
        return self.stats[figure]["all"].current

    def peak(self, figure: str) -> int:
        """Peak since the last reset of a figure over all pools."""
        return self.stats[figure]["all"].peak

    def reset_peaks(self) -> None:
        """`torch.cuda.reset_peak_memory_stats`."""
        for pools in self.stats.values():
            for counter in pools.values():
                counter.peak = counter.current

    def reset_accumulated(self) -> None:
        """`torch.cuda.reset_accumulated_memory_stats`."""
        for pools in self.stats.values():
            for counter in pools.values():
                counter.allocated = counter.freed = 0
        self.retries = self.ooms = 0

    def _count(self, block: Block, **amounts: int) -> None:
        pool = "small_pool" if block.small else "large_pool"
        for figure, amount in amounts.items():
            if amount:
                self.stats[figure]["all"].add(amount)
                self.stats[figure][pool].add(amount)

    def _count_block(self, small: bool, sign: int, size: int, requested: int) -> None:
        """`_count` for the figures that every allocation and release changes (the hot path, so written out)."""
        for counter, amount in zip(self._hot[small], (size, size, requested, requested, 1, 1), strict=True):
            if sign > 0:
                counter.allocated += amount
                counter.current = current = counter.current + amount
                if current > counter.peak:
                    counter.peak = current
            else:
                counter.freed += amount
                counter.current -= amount

    @staticmethod
    def round_bytes(requested: int) -> int:
        """`round_size`: what a request occupies."""
        return max(MIN_BLOCK_BYTES, -(-requested // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)

    @staticmethod
    def segment_bytes(rounded: int) -> int:
        """`get_allocation_size`: what cudaMalloc is asked for when no cached block fits."""
        if rounded <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if rounded < MIN_LARGE_ALLOCATION_BYTES:
            return LARGE_SEGMENT_BYTES
        return -(-rounded // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES

    def malloc(self, requested: int, stream: int = 0) -> Block:
        """A block for a tensor's storage of `requested` > 0 bytes; raises OutOfMemory."""
        rounded = self.round_bytes(requested)
        small = rounded <= SMALL_REQUEST_BYTES
        pool = self._pools.setdefault((stream, small), _Pool())
        block = pool.best_fit(rounded)
        if block is not None:
            pool.remove(block)
        else:
            block = self._new_segment(rounded, small, stream)
        was_split = self._is_split(block)
        remaining = block.bytes - rounded
        if remaining >= MIN_BLOCK_BYTES if small else remaining > SMALL_REQUEST_BYTES:
            rest = Block(next(self._serial), block.address + rounded, remaining, small, stream, block.segment_bytes)
            rest.previous, rest.next = block, block.next
            if rest.next is not None:
                rest.next.previous = rest
            block.next, block.bytes = rest, rounded
            pool.insert(rest)
            change = (-rounded, 0) if was_split else (remaining, 1)
            self._count(block, inactive_split_bytes=change[0], inactive_split=change[1])
        elif was_split:
            self._count(block, inactive_split_bytes=-block.bytes, inactive_split=-1)
        block.allocated, block.requested_bytes = True, requested
        self._count_block(small, 1, block.bytes, requested)
        return block

    @staticmethod
    def _is_split(block: Block) -> bool:
        return block.previous is not None or block.next is not None

    def _new_segment(self, rounded: int, small: bool, stream: int) -> Block:
        size = self.segment_bytes(rounded)
        if self.current("reserved_bytes") + size > self.limit_bytes:
            # As CUDA does: give back every wholly free segment, then try again once.
            self.retries += 1
            self.empty_cache()
            if self.current("reserved_bytes") + size > self.limit_bytes:
                self.ooms += 1
                raise OutOfMemory(size)
        block = Block(next(self._serial), self._next_address, size, small, stream, size)
        self._next_address += -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
        self.segments[block.address] = block
        self._count(block, reserved_bytes=size, segment=1)
        return block

    def free(self, block: Block) -> None:
        """The tensor's storage is gone: the block goes back to its pool, merged with free neighbours."""
        self._count_block(block.small, -1, block.bytes, block.requested_bytes)
        block.allocated, block.requested_bytes = False, 0
        pool = self._pools[(block.stream, block.small)]
        free_before = 0, 0
        for neighbour in (block.previous, block.next):
            if neighbour is not None and not neighbour.allocated:
                pool.remove(neighbour)
                free_before = free_before[0] + neighbour.bytes, free_before[1] + 1
        if block.next is not None and not block.next.allocated:
            self._absorb_next(block)
        if block.previous is not None and not block.previous.allocated:
            block = block.previous
            self._absorb_next(block)
        pool.insert(block)
        free_after = (block.bytes, 1) if self._is_split(block) else (0, 0)
        if free_after != free_before:
            self._count(
                block,
                inactive_split_bytes=free_after[0] - free_before[0],
                inactive_split=free_after[1] - free_before[1],
            )

    @staticmethod
    def _absorb_next(block: Block) -> None:
        gone = block.next
        assert gone is not None
        block.bytes += gone.bytes
        block.next = gone.next
        if block.next is not None:
            block.next.previous = block

    def empty_cache(self) -> int:
        """`torch.cuda.empty_cache`: segments without any allocated block go back to the device; returns the bytes."""
        released = 0
        for pool in self._pools.values():
            for entry in list(pool.free):
                block = entry[3]
                if not self._is_split(block):
                    pool.free.remove(entry)
                    del self.segments[block.address]
                    released += block.bytes
                    self._count(block, reserved_bytes=-block.bytes, segment=-1)
        return released

    def as_memory_stats(self) -> dict[str, object]:
        """The nested dictionary that `torch._C._cuda_memoryStats` returns."""
        result: dict[str, object] = {
            figure: {
                pool: {"current": c.current, "peak": c.peak, "allocated": c.allocated, "freed": c.freed}
                for pool, c in pools.items()
            }
            for figure, pools in self.stats.items()
        }
        result |= {name: result[same] for name, same in _SAME_FIGURES.items()}
        empty = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
        result |= {"oversize_allocations": dict(empty), "oversize_segments": dict(empty)}
        result |= {"num_alloc_retries": self.retries, "num_ooms": self.ooms, "max_split_size": -1}
        result |= {"num_sync_all_streams": 0, "num_device_alloc": self.stats["segment"]["all"].allocated}
        result["num_device_free"] = self.stats["segment"]["all"].freed
        return result
