"""The caching allocator with `expandable_segments:True`: one growing segment per stream and pool. Pure Python.

A model of CUDACachingAllocator.cpp, Note [Expandable Segments]: pages of 2 MiB (small pool) or 20 MiB (large pool) are
mapped at the lowest free address, and unmapped again when memory is given back. Not here: the rest of the allocator.
"""

from __future__ import annotations

from vgpu.runtime.memory.allocator import LARGE_SEGMENT_BYTES, MIN_BLOCK_BYTES, SMALL_SEGMENT_BYTES, CachingAllocator
from vgpu.runtime.memory.blocks import Block, Pool

# Address space of a segment: more than any GPU has memory.
_ADDRESS_SPACE_BYTES = 1 << 42


class ExpandableAllocator(CachingAllocator):
    """Segments that grow; `inactive_split` leaves their blocks out, since free pages can always be given back."""

    counts_splits = False

    def _splits(self, small: bool, rounded: int, remaining: int) -> bool:
        return remaining >= MIN_BLOCK_BYTES

    def _new_block(self, rounded: int, small: bool, stream: int) -> Block:
        """`try_allocate_expandable_block`: the lowest address where free pages and address space suffice."""
        pool = self._pools[stream, small, self.private]
        space = self._lowest(rounded, small, stream)
        missing = self._missing(space, rounded, small)
        self._make_room(missing, stream, small)
        # Making room may have unmapped pages: look again.
        space = self._lowest(rounded, small, stream)
        block = space
        if space.mapped:
            pool.remove(space)
        else:
            block = self._map(space, rounded)
        while block.bytes < rounded:
            following = block.next
            assert following is not None
            if following.mapped:
                pool.remove(following)
            else:
                following = self._map(following, rounded - block.bytes)
            self._absorb_next(block)
        return block

    def _lowest(self, rounded: int, small: bool, stream: int) -> Block:
        for first in self.segments.values():
            if (first.small, first.stream, first.private) != (small, stream, self.private):
                continue
            block: Block | None = first
            start, room = None, 0
            while block is not None:
                if not block.is_free:
                    start, room = None, 0
                else:
                    start = start or block
                    room += block.bytes
                    if room >= rounded:
                        return start
                block = block.next
        # Addresses are multiples of both pages, so that an address says where its page begins.
        base = -(-self._next_address // LARGE_SEGMENT_BYTES) * LARGE_SEGMENT_BYTES
        space = Block(next(self._serial), base, _ADDRESS_SPACE_BYTES, small, stream, mapped=False, private=self.private)
        self._next_address = base + _ADDRESS_SPACE_BYTES
        self.segments[space.address] = space
        return space

    @staticmethod
    def _page(small: bool) -> int:
        return SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES

    def _missing(self, block: Block, rounded: int, small: bool) -> int:
        """Bytes of pages that must be mapped so that `rounded` bytes from `block` on can be used."""
        page, missing = self._page(small), 0
        at: Block | None = block
        while at is not None and rounded > 0:
            if not at.mapped:
                missing += min(at.bytes, -(-rounded // page) * page)
            rounded -= at.bytes
            at = at.next
        return missing

    def _map(self, space: Block, needed: int) -> Block:
        """`map_block`: pages for `needed` bytes at the beginning of unmapped address space."""
        page = self._page(space.small)
        size = min(space.bytes, -(-needed // page) * page)
        if size < space.bytes:
            rest = space.rest(next(self._serial), size)
            rest.previous, rest.next = space, space.next
            if rest.next is not None:
                rest.next.previous = rest
            space.next, space.bytes = rest, size
        space.mapped = True
        self.device_allocations += 1
        self._count(space, reserved_bytes=size)
        return space

    def empty_cache(self) -> int:
        """Free pages are unmapped, also those between blocks in use (`release_expandable_segment`, `unmap_block`)."""
        self._synchronise()
        before = self.current("reserved_bytes")
        for pool in self._cached_pools():
            for entry in list(pool.free):
                self._unmap(entry[3], pool)
        return before - self.current("reserved_bytes")

    def _unmap(self, block: Block, pool: Pool) -> None:
        page = self._page(block.small)
        start = -(-block.address // page) * page
        end = (block.address + block.bytes) // page * page
        if end <= start:
            return
        pool.remove(block)
        head, tail = start - block.address, block.address + block.bytes - end
        gone = block
        if head:
            gone = self._cut(block, head)
            pool.insert(block)
        if tail:
            pool.insert(self._cut(gone, end - start))
        gone.mapped = False
        self.device_releases += 1
        self._count(gone, reserved_bytes=-gone.bytes)
        for first, second in ((gone, gone.next), (gone.previous, gone)):
            if first is not None and second is not None and not first.mapped and not second.mapped:
                self._absorb_next(first)

    def _cut(self, block: Block, size: int) -> Block:
        """Cut a free block after `size` bytes; returns the second part."""
        rest = block.rest(next(self._serial), size)
        rest.previous, rest.next = block, block.next
        if rest.next is not None:
            rest.next.previous = rest
        block.next, block.bytes = rest, size
        return rest
