"""Accounting of PyTorch's caching allocator: which bytes are allocated, cached and reserved. Pure Python, no memory.

A model of `c10/cuda/CUDACachingAllocator.cpp` (constants, pools, best fit, splitting, merging, release of wholly free
segments, blocks that other streams still use). Not here: expandable segments (`vgpu.runtime.memory.expandable`),
options (`vgpu.runtime.memory.allocator_settings`), and any real memory.
"""

from __future__ import annotations

import itertools
import math
import threading
from bisect import bisect_left, insort

from vgpu.runtime.memory.allocator_settings import AllocatorSettings, round_up
from vgpu.runtime.memory.blocks import Block, Counter, Pool

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


FIGURES = (
    "allocated_bytes", "reserved_bytes", "inactive_split_bytes", "requested_bytes", "allocation", "segment",
    "inactive_split",
)  # fmt: skip
# A block stays active while another stream may still use it. Until the first such block these are the same figures.
_ACTIVE = {"active_bytes": "allocated_bytes", "active": "allocation"}
_POOLS = ("all", "large_pool", "small_pool")
# What an allocation or a release changes.
_CHANGED = (
    "allocated_bytes", "allocation", "requested_bytes", "active_bytes", "active", "inactive_split_bytes",
    "inactive_split",
)  # fmt: skip
_MOST_CHANGES = 100_000
_INFINITE = math.inf


class CachingAllocator:
    """Bytes on one GPU. `capacity_bytes` is what the allocator may reserve (the card less the CUDA context)."""

    # Whether free bytes that `empty_cache` cannot give back, because their segment is in use, are a figure.
    counts_splits = True

    def __init__(self, capacity_bytes: int, settings: AllocatorSettings | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.limit_bytes = capacity_bytes
        self.configure(settings or AllocatorSettings())
        self._stats = {name: {pool: Counter() for pool in _POOLS} for name in FIGURES}
        self.reserved = self._stats["reserved_bytes"]["all"]
        self.oversize = {"oversize_allocations": Counter(), "oversize_segments": Counter()}
        self.retries = 0
        self.ooms = 0
        self.synchronisations = 0
        self.device_allocations = 0
        self.device_releases = 0
        # Until when the host has waited for other streams so as to get blocks back (seconds).
        self.waited_until = 0.0
        # By stream, whether blocks are small, and private pool.
        self._pools: dict[tuple[int, bool, int], Pool] = {}
        self.private = 0
        """The private pool from which allocations are served now (`beginAllocateToPool`); 0: none."""
        # How many graphs use each private pool: nobody else gets its memory, nor is it given back.
        self._graphs: dict[int, int] = {}
        # Freed blocks that a stream still uses until a moment (seconds): `insert_events`.
        self._waiting: list[tuple[float, Block]] = []
        # Bytes allocated now. The other figures that every allocation changes are noted, and counted when somebody
        # asks: counting takes longer than all the rest of an allocation.
        self.allocated_now = 0
        self._changes: list[tuple[bool, int, int, int, int, int, int, int]] = []
        self._counting = threading.Lock()
        self._serial = itertools.count()
        self._next_address = 0x7F00_0000_0000
        self.segments: dict[int, Block] = {}

    def configure(self, settings: AllocatorSettings) -> None:
        """New options, for what is allocated from now on."""
        self.settings = settings
        self._divides = any(settings.divisions)
        self._largest_split = settings.max_split_bytes

    # ---- figures ----------------------------------------------------------------------------------------------

    @property
    def stats(self) -> dict[str, dict[str, Counter]]:
        """Every figure by pool."""
        if self._changes:
            self._count_changes()
        return self._stats

    def _note(self, change: tuple[bool, int, int, int, int, int, int, int]) -> None:
        """Whether the pool is the small one, and the changes of the figures in `_CHANGED`."""
        self._changes.append(change)
        if len(self._changes) >= _MOST_CHANGES:
            self._count_changes()

    def _count_changes(self) -> None:
        with self._counting:
            changes, self._changes = self._changes, []
            for small, *amounts in changes:
                kind = "small_pool" if small else "large_pool"
                for name, amount in zip(_CHANGED, amounts, strict=True):
                    if amount and name in self._stats:
                        pools = self._stats[name]
                        pools["all"].add(amount)
                        pools[kind].add(amount)

    def current(self, figure: str) -> int:
        """Current value of a figure over all pools."""
        if figure == "allocated_bytes":
            return self.allocated_now
        return (self.reserved if figure == "reserved_bytes" else self.stats[figure]["all"]).current

    def peak(self, figure: str) -> int:
        """Peak since the last reset of a figure over all pools."""
        return self.stats[figure]["all"].peak

    def _all_counters(self) -> list[Counter]:
        return [counter for pools in self.stats.values() for counter in pools.values()] + [*self.oversize.values()]

    def reset_peaks(self) -> None:
        """`torch.cuda.reset_peak_memory_stats`."""
        for counter in self._all_counters():
            counter.peak = counter.current

    def reset_accumulated(self) -> None:
        """`torch.cuda.reset_accumulated_memory_stats`."""
        for counter in self._all_counters():
            counter.allocated = counter.freed = 0
        self.retries = self.ooms = self.synchronisations = 0
        self.device_allocations = self.device_releases = 0

    def _count(self, block: Block, **amounts: int) -> None:
        pool = "small_pool" if block.small else "large_pool"
        for figure, amount in amounts.items():
            if amount:
                self._stats[figure]["all"].add(amount)
                self._stats[figure][pool].add(amount)

    # ---- sizes ------------------------------------------------------------------------------------------------

    @staticmethod
    def round_bytes(requested: int) -> int:
        """`round_size` with the default options: what a request occupies."""
        return max(MIN_BLOCK_BYTES, -(-requested // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)

    @staticmethod
    def segment_bytes(rounded: int) -> int:
        """`get_allocation_size`: what cudaMalloc is asked for when no cached block fits."""
        if rounded <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if rounded < MIN_LARGE_ALLOCATION_BYTES:
            return LARGE_SEGMENT_BYTES
        return -(-rounded // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES

    def _splits(self, small: bool, rounded: int, remaining: int) -> bool:
        """`should_split`."""
        if small:
            return remaining >= MIN_BLOCK_BYTES
        return remaining > SMALL_REQUEST_BYTES and rounded < self._largest_split

    # ---- allocation -------------------------------------------------------------------------------------------

    def malloc(self, requested: int, stream: int = 0, now: float = math.inf) -> Block:
        """A block for a tensor's storage of `requested` > 0 bytes; raises OutOfMemory.

        `now` is the device's time in seconds: blocks that other streams have passed by then are free again.
        """
        if self._waiting:
            self._release_passed(now)
        if self._divides:
            rounded = round_up(requested, self.settings.divisions, MIN_BLOCK_BYTES)
        else:
            rounded = -(-requested // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
        small = rounded <= SMALL_REQUEST_BYTES
        pool = self._pools.get((stream, small, self.private))
        if pool is None:
            pool = self._pools[stream, small, self.private] = Pool()
        free = pool.free
        if self._largest_split != _INFINITE:
            block = self._cached(pool, rounded)
        elif (index := bisect_left(free, (rounded,))) < len(free):  # `Pool.best_fit` and `remove`, written out
            block = free.pop(index)[3]
        else:
            block = None
        if block is None:
            block = self._new_block(rounded, small, stream)
        was_split = block.previous is not None or block.next is not None
        remaining = block.bytes - rounded
        split_bytes = splits = 0
        # Every kind of allocator splits small blocks alike.
        if remaining >= MIN_BLOCK_BYTES and (small or self._splits(small, rounded, remaining)):
            rest = block.rest(next(self._serial), rounded)
            rest.previous, rest.next = block, block.next
            if rest.next is not None:
                rest.next.previous = rest
            block.next, block.bytes = rest, rounded
            insort(free, (remaining, rest.address, rest.serial, rest))
            split_bytes, splits = (-rounded, 0) if was_split else (remaining, 1)
        elif was_split:
            split_bytes, splits = -block.bytes, -1
        if not self.counts_splits:
            split_bytes = splits = 0
        block.allocated, block.requested_bytes = True, requested
        size = block.bytes
        self.allocated_now += size
        self._changes.append((small, size, 1, requested, size, 1, split_bytes, splits))
        if size >= self._largest_split:
            self.oversize["oversize_allocations"].add(1)
        return block

    def pass_through(self, requested: int, stream: int = 0) -> tuple[int, int]:
        """A `malloc` and the `free` that follows it at once, where a cached block makes that cheap.

        Returns the block's bytes and address, or (0, 0) where no cached block fits and nothing has been done. Figures
        of inactive splits, which dip for a moment, are left alone.
        """
        rounded = -(-requested // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
        small = rounded <= SMALL_REQUEST_BYTES
        pool = self._pools.get((stream, small, self.private))
        if pool is None or self._waiting or self._divides or self._largest_split != math.inf:
            return 0, 0
        free = pool.free
        index = bisect_left(free, (rounded,))  # `Pool.best_fit` and `_note`, written out: this is part of products
        if index == len(free):
            return 0, 0
        block = free[index][3]
        size = rounded if self._splits(small, rounded, block.bytes - rounded) else block.bytes
        changes = self._changes
        changes.append((small, size, 1, requested, size, 1, 0, 0))
        changes.append((small, -size, -1, -requested, -size, -1, 0, 0))
        if len(changes) >= _MOST_CHANGES:
            self._count_changes()
        return size, block.address

    def _cached(self, pool: Pool, rounded: int) -> Block | None:
        """`get_free_block`: the smallest that fits, if the oversize rules allow it; it is no longer free."""
        block = pool.best_fit(rounded)
        largest = self._largest_split
        if block is None or rounded < largest <= block.bytes:
            return None
        if rounded >= largest and block.bytes >= rounded + self.settings.max_non_split_rounding_bytes:
            return None
        pool.remove(block)
        return block

    def _new_block(self, rounded: int, small: bool, stream: int) -> Block:
        size = self.segment_bytes(rounded)
        self._make_room(size, stream, small)
        block = Block(next(self._serial), self._next_address, size, small, stream, private=self.private)
        self._next_address += -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
        self.segments[block.address] = block
        self.device_allocations += 1
        self._count(block, reserved_bytes=size, segment=1)
        if size >= self.settings.max_split_bytes:
            self.oversize["oversize_segments"].add(1)
        return block

    def _make_room(self, size: int, stream: int, small: bool) -> None:
        """As CUDA does when cudaMalloc fails: give cached segments back and try again once, then give up."""
        if self._fits(size):
            return
        self._release_oversize(size, self._pools[stream, small, self.private])
        if self._fits(size):
            return
        self.retries += 1
        self.empty_cache()
        if not self._fits(size):
            self.ooms += 1
            raise OutOfMemory(size)

    def _fits(self, size: int) -> bool:
        return self.current("reserved_bytes") + size <= self.limit_bytes

    def _release_oversize(self, size: int, pool: Pool) -> None:
        """`release_available_cached_blocks`: with max_split_size_mb, oversize blocks go first, the largest first."""
        largest = self.settings.max_split_bytes
        if largest == math.inf:
            return
        needed_bytes = max(size, int(largest))
        candidates = [entry[3] for entry in pool.free if not entry[3].is_split]
        enough = next((block for block in candidates if block.bytes >= needed_bytes), None)
        released = 0
        for block in [enough] if enough is not None else reversed(candidates):
            if released >= needed_bytes or block.bytes < largest:
                break
            released += block.bytes
            self._give_back(block, pool)

    # ---- release ----------------------------------------------------------------------------------------------

    def free(self, block: Block, until: float = 0.0) -> None:
        """The tensor's storage is gone. A block that other streams use stays theirs until the moment `until`."""
        size = block.bytes
        self.allocated_now -= size
        if size >= self._largest_split:
            self.oversize["oversize_allocations"].add(-1)
        block.allocated = False
        if block.uses:
            if "active" not in self._stats:
                self._tell_active_apart()
            self._note((block.small, -size, -1, 0, 0, 0, 0, 0))
            block.waiting, block.uses = True, frozenset()
            self._waiting.append((until, block))
        else:
            self._free_block(block, -size, -1)

    def _tell_active_apart(self) -> None:
        stats = self.stats
        for name, same in _ACTIVE.items():
            stats[name] = {
                pool: Counter(counter.current, counter.peak, counter.allocated, counter.freed)
                for pool, counter in stats[same].items()
            }

    def _synchronise(self) -> None:
        """`synchronize_and_free_events`."""
        self.synchronisations += 1
        self.waited_until = max((until for until, _ in self._waiting), default=self.waited_until)
        self._release_passed(math.inf)

    def _release_passed(self, now: float) -> None:
        """`process_events`."""
        passed = [block for until, block in self._waiting if until <= now]
        if passed:
            self._waiting = [entry for entry in self._waiting if entry[0] > now]
            for block in passed:
                block.waiting = False
                self._free_block(block)

    def _free_block(self, block: Block, size: int = 0, number: int = 0) -> None:
        """`free_block`: back to the pool, merged with free neighbours; the change of what is allocated comes along."""
        small, active, requested = block.small, block.bytes, block.requested_bytes
        block.requested_bytes = 0
        # `Pool.remove`, `Pool.insert`, `_absorb_next` and `_note`, written out: this is part of every operation.
        free = self._pools[block.stream, small, block.private].free
        split_bytes = splits = 0
        following, previous = block.next, block.previous
        if following is not None and following.mapped and not (following.allocated or following.waiting):
            del free[bisect_left(free, (following.bytes, following.address, following.serial))]
            split_bytes, splits = -following.bytes, -1
            block.bytes += following.bytes
            block.next = following.next
            if block.next is not None:
                block.next.previous = block
        if previous is not None and previous.mapped and not (previous.allocated or previous.waiting):
            del free[bisect_left(free, (previous.bytes, previous.address, previous.serial))]
            split_bytes, splits = split_bytes - previous.bytes, splits - 1
            block = previous
            self._absorb_next(block)
        insort(free, (block.bytes, block.address, block.serial, block))
        if block.previous is not None or block.next is not None:
            split_bytes, splits = split_bytes + block.bytes, splits + 1
        if not self.counts_splits:
            split_bytes = splits = 0
        self._changes.append((small, size, number, -requested, -active, -1, split_bytes, splits))
        if len(self._changes) >= _MOST_CHANGES:
            self._count_changes()

    @staticmethod
    def _absorb_next(block: Block) -> None:
        gone = block.next
        assert gone is not None
        block.bytes += gone.bytes
        block.next = gone.next
        if block.next is not None:
            block.next.previous = block

    def empty_cache(self) -> int:
        """`torch.cuda.empty_cache`: segments without any used block go back to the device; returns the bytes.

        The host waits for blocks that streams still use; until when, `waited_until` says.
        """
        self._synchronise()
        before = self.current("reserved_bytes")
        for pool in self._cached_pools():
            for entry in list(pool.free):
                if not entry[3].is_split:
                    self._give_back(entry[3], pool)
        return before - self.current("reserved_bytes")

    def _cached_pools(self) -> list[Pool]:
        """All pools but those that graphs keep."""
        return [pool for (_, _, private), pool in self._pools.items() if private not in self._graphs]

    def kept_bytes(self) -> int:
        """Free bytes that graphs keep for themselves."""
        pools = [pool for (_, _, private), pool in self._pools.items() if private in self._graphs]
        return sum(entry[0] for pool in pools for entry in pool.free)

    def keep_private(self, pool: int) -> None:
        """One more graph keeps a private pool: what it frees goes nowhere else (Note [Interaction with CUDA graph])."""
        self._graphs[pool] = self._graphs.get(pool, 0) + 1

    def release_private(self, pool: int) -> None:
        """`releasePool`: after the last graph, free segments may be given back to the device."""
        left = self._graphs.pop(pool, 1) - 1
        if left > 0:
            self._graphs[pool] = left

    def _give_back(self, block: Block, pool: Pool) -> None:
        """`release_block`: cudaFree of a wholly free segment."""
        pool.remove(block)
        del self.segments[block.address]
        self.device_releases += 1
        self._count(block, reserved_bytes=-block.bytes, segment=-1)
        if block.bytes >= self.settings.max_split_bytes:
            self.oversize["oversize_segments"].add(-1)

    # ---- what programs ask ------------------------------------------------------------------------------------

    def as_memory_stats(self) -> dict[str, object]:
        """The nested dictionary that `torch._C._cuda_memoryStats` returns."""

        def shown(counter: Counter) -> dict[str, int]:
            return {
                "current": counter.current, "peak": counter.peak,
                "allocated": counter.allocated, "freed": counter.freed,
            }  # fmt: skip

        result: dict[str, object] = {
            figure: {pool: shown(counter) for pool, counter in pools.items()} for figure, pools in self.stats.items()
        }
        for name, same in _ACTIVE.items():
            result.setdefault(name, result[same])
        result |= {name: shown(counter) for name, counter in self.oversize.items()}
        largest = self.settings.max_split_bytes
        result |= {"num_alloc_retries": self.retries, "num_ooms": self.ooms}
        result |= {"max_split_size": -1 if largest == math.inf else int(largest)}
        result |= {"num_sync_all_streams": self.synchronisations}
        result |= {"num_device_alloc": self.device_allocations, "num_device_free": self.device_releases}
        return result
