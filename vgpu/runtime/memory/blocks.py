"""What the model of the caching allocator is made of: blocks, pools of free blocks, counters. Pure Python.

Not here: the rules (`vgpu.runtime.memory.allocator`).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

_NOTHING: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment. `requested_bytes` is what the tensor wanted, `bytes` what it occupies.

    `uses` are other streams that work on it (`record_stream`); `tag` says what they are
    (`vgpu.runtime.memory.categories`).
    """

    serial: int
    address: int
    bytes: int
    small: bool
    stream: int
    requested_bytes: int = 0
    allocated: bool = False
    mapped: bool = True
    waiting: bool = False
    previous: Block | None = None
    next: Block | None = None
    uses: set[int] | frozenset[int] = _NOTHING
    tag: list[int] | None = None
    private: int = 0
    """The private pool that it belongs to; 0: none."""
    since: float = 0.0
    """When its present owner got it (seconds)."""

    def rest(self, serial: int, size: int) -> Block:
        """A block of what is behind its first `size` bytes."""
        return Block(
            serial, self.address + size, self.bytes - size, self.small, self.stream,
            mapped=self.mapped, private=self.private,
        )  # fmt: skip

    @property
    def is_free(self) -> bool:
        """Whether it may be handed out or merged."""
        return not (self.allocated or self.waiting)

    @property
    def is_split(self) -> bool:
        """Whether its segment holds other blocks too."""
        return self.previous is not None or self.next is not None


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


@dataclass(slots=True)
class Pool:
    """Free blocks of one kind and stream, kept in the order (bytes, address) that best fit wants."""

    free: list[tuple[int, int, int, Block]] = field(default_factory=list)

    def insert(self, block: Block) -> None:
        """A free block."""
        bisect.insort(self.free, (block.bytes, block.address, block.serial, block))

    def remove(self, block: Block) -> None:
        """The block is no longer free."""
        index = bisect.bisect_left(self.free, (block.bytes, block.address, block.serial))
        del self.free[index]

    def best_fit(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes."""
        index = bisect.bisect_left(self.free, (size,))
        return self.free[index][3] if index < len(self.free) else None
