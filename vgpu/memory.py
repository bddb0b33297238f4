"""The GPU's memory as a program sees it: allocations of storages, their history, and running out of it.

Not here: the accounting rules (`vgpu.allocator`) and which tensors live on the GPU (`vgpu.residency`).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import torch

from vgpu.allocator import Block, CachingAllocator, OutOfMemory
from vgpu.clock import HostClock
from vgpu.spec import Spec


class MemorySample(NamedTuple):
    """Bytes on the GPU after an allocation or a release, at a host time (seconds since attach)."""

    seconds: float
    allocated_bytes: int
    reserved_bytes: int


def format_bytes(size: int) -> str:
    """`format_size` of CUDACachingAllocator.cpp."""
    if size <= 1024:
        return f"{size} bytes"
    for unit, scale in (("KiB", 1 << 10), ("MiB", 1 << 20)):
        if size <= scale * 1024:
            return f"{size / scale:.2f} {unit}"
    return f"{size / (1 << 30):.2f} GiB"


class DeviceMemory:
    """Allocations on one GPU, from any thread."""

    def __init__(self, spec: Spec, clock: HostClock) -> None:
        self._spec = spec
        self._clock = clock
        self._lock = threading.RLock()
        self.allocator = CachingAllocator(spec.memory_bytes - spec.context_bytes)
        self._samples: list[tuple[float, int, int]] = []
        self.fraction = 1.0
        # Storages die at any moment, also while the allocator's lock is held (garbage collection): the release is
        # only noted then, and done before the next allocation or reading.
        self._released: deque[tuple[float, Block]] = deque()

    def allocate(self, requested: int, stream: int = 0) -> Block:
        """A block of `requested` > 0 bytes; raises torch.OutOfMemoryError with CUDA's wording."""
        with self._lock:
            self._settle()
            try:
                block = self.allocator.malloc(requested, stream)
            except OutOfMemory as error:
                wanted = error.requested_bytes
            else:
                self._sample(self._clock.now)
                return block
        raise torch.OutOfMemoryError(self._out_of_memory_text(wanted))

    def release(self, block: Block) -> None:
        """The storage of `block` is gone. Safe at any moment, in any thread."""
        self._released.append((self._clock.now, block))

    def require(self, requested: int) -> None:
        """Raise as `allocate` would when `requested` bytes can never fit, before anything is computed."""
        if requested > self.allocator.limit_bytes - self.settled().current("allocated_bytes"):
            rounded = CachingAllocator.segment_bytes(CachingAllocator.round_bytes(requested))
            self.allocator.ooms += 1
            raise torch.OutOfMemoryError(self._out_of_memory_text(rounded))

    def settled(self) -> CachingAllocator:
        """The allocator with every noted release done."""
        with self._lock:
            self._settle()
            return self.allocator

    def empty_cache(self) -> None:
        """`torch.cuda.empty_cache`."""
        with self._lock:
            self._settle()
            if self.allocator.empty_cache():
                self._sample(self._clock.now)

    def set_fraction(self, fraction: float) -> None:
        """`torch.cuda.set_per_process_memory_fraction`."""
        self.fraction = fraction
        self.allocator.limit_bytes = min(int(self._spec.memory_bytes * fraction), self.allocator.capacity_bytes)

    def free_bytes(self) -> int:
        """What cudaMemGetInfo calls free: the card less the context and every reserved segment."""
        return self.allocator.capacity_bytes - self.settled().current("reserved_bytes")

    def _settle(self) -> None:
        while self._released:
            moment, block = self._released.popleft()
            self.allocator.free(block)
            self._sample(moment)

    @property
    def timeline(self) -> list[MemorySample]:
        """Every change of memory so far."""
        with self._lock:
            self._settle()
            return [MemorySample(*sample) for sample in self._samples]

    def _sample(self, moment: float) -> None:
        stats = self.allocator.stats
        reserved = stats["reserved_bytes"]["all"].current
        self._samples.append((moment, stats["allocated_bytes"]["all"].current, reserved))

    def _out_of_memory_text(self, wanted: int) -> str:
        allocator, spec = self.allocator, self._spec
        reserved, allocated = allocator.current("reserved_bytes"), allocator.current("allocated_bytes")
        allowed = f"{format_bytes(allocator.limit_bytes)} allowed; " if self.fraction < 1.0 else ""
        return (
            f"CUDA out of memory. Tried to allocate {format_bytes(wanted)}. "
            f"GPU 0 has a total capacity of {format_bytes(spec.memory_bytes)} of which "
            f"{format_bytes(allocator.capacity_bytes - reserved)} is free. "
            f"Including non-PyTorch memory, this process has "
            f"{format_bytes(reserved + spec.context_bytes)} memory in use. {allowed}"
            f"Of the allocated memory {format_bytes(allocated)} is allocated by PyTorch, and "
            f"{format_bytes(reserved - allocated)} is reserved by PyTorch but unallocated. "
            "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
            "to avoid fragmentation.  See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables) "
            f"[simulated by vgpu: {spec.name}]"
        )
