"""The GPU's memory as a program sees it: allocations of storages, their history, and running out of it.

Not here: the accounting rules (`vgpu.runtime.memory.allocator`), which tensors live on the GPU
(`vgpu.runtime.memory.residency`), what the bytes are for (`vgpu.runtime.memory.categories`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from vgpu.device.queue import Queue
from vgpu.device.spec import Spec
from vgpu.runtime import audit_events
from vgpu.runtime.host_clock import HostClock
from vgpu.runtime.memory import frames
from vgpu.runtime.memory.allocator import CachingAllocator, OutOfMemory
from vgpu.runtime.memory.allocator_settings import AllocatorSettings, from_environment, parse
from vgpu.runtime.memory.blocks import Block
from vgpu.runtime.memory.expandable import ExpandableAllocator

# Bound here: a program may replace them.
_audit = sys.audit
_bytes_of = torch.UntypedStorage.nbytes

# The category of bytes that nobody said anything about (an index into `vgpu.runtime.memory.categories.NAMES`).
OTHER = 5


class MemorySample(NamedTuple):
    """Bytes on the GPU after an allocation or a release, at a host time (seconds since attach)."""

    seconds: float
    allocated_bytes: int
    reserved_bytes: int


class MemoryEvent(NamedTuple):
    """The same with what changed: `bytes` (negative: released) of the block described by `tag`, at `address`."""

    seconds: float
    allocated_bytes: int
    reserved_bytes: int
    tag: list[int]
    bytes: int
    address: int
    stream: int


def format_bytes(size: int) -> str:
    """`format_size` of CUDACachingAllocator.cpp."""
    if size <= 1024:
        return f"{size} bytes"
    for unit, scale in (("KiB", 1 << 10), ("MiB", 1 << 20)):
        if size <= scale * 1024:
            return f"{size / scale:.2f} {unit}"
    return f"{size / (1 << 30):.2f} GiB"


_Event = tuple[float, int, int, list[int], int, int, int]
"""The fields of a `MemoryEvent`."""
# What the error advises while segments do not expand (CUDACachingAllocator.cpp).
_TIP = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)
# CUDACachingAllocator.cpp, `one_exa_bytes`.
_EXABYTE = 1 << 60


class DeviceMemory:
    """Allocations on one GPU, from any thread."""

    def __init__(self, spec: Spec, clock: HostClock, index: int = 0, queue: Queue | None = None) -> None:
        self._spec = spec
        self._index = index
        self._clock = clock
        self.queue = queue
        self._lock = threading.RLock()
        self.options = from_environment()
        """The text of the allocator's options, as in PYTORCH_CUDA_ALLOC_CONF."""
        self.allocator = self._new_allocator(parse(self.options))
        self.history = audit_events.Keeper(audit_events.history())
        known = audit_events.living(_bytes_of)
        next(known)
        self.living: Callable[[Any], Any] = known.send
        """Takes and answers what `audit_events.living` says, or raises ValueError in what has interrupted it."""
        self._event_count = 0
        self.stacks: dict[int, list[dict[str, Any]]] | None = None
        """By the number of a change the Python frames that made it, while somebody records them."""
        self.observers: list[Callable[[int, int, int, int], None]] = []
        """Called before an allocation fails: device, bytes wanted, bytes allocated and bytes free."""
        self._peak_from = 0
        self.fraction = 1.0
        self._limit()
        # Storages die at any moment, also while the allocator's lock is held (garbage collection): the release is
        # only noted then, and done before the next allocation or reading.
        self._released: deque[tuple[float, float, Block]] = deque()

    def _new_allocator(self, settings: AllocatorSettings) -> CachingAllocator:
        kind = ExpandableAllocator if settings.expandable_segments else CachingAllocator
        return kind(self._spec.memory_bytes - self._spec.context_bytes, settings)

    def _limit(self) -> None:
        if self.allocator.settings.process_fraction < 1.0:
            self.set_fraction(self.allocator.settings.process_fraction)

    def begin(self) -> None:
        """The first use: PyTorch reads the options only then, so a program may have set them itself."""
        options = from_environment()
        if options != self.options:
            self.options = options
            self.configure(parse(options))
            self._limit()

    def configure(self, settings: AllocatorSettings) -> None:
        """New options while the program runs. Whether segments expand is decided before the first allocation."""
        with self._lock:
            if not self.allocator.segments:
                self.allocator = self._new_allocator(settings)
            else:
                self.allocator.configure(settings)

    def allocate(self, requested: int, stream: int = 0, tag: list[int] | None = None) -> Block:
        """A block of `requested` > 0 bytes; raises torch.OutOfMemoryError with CUDA's wording.

        `tag` holds the category of the bytes (`vgpu.runtime.memory.categories`), which may change while the block
        lives.
        """
        with self._lock:
            # Kept in one go with the allocation: a message to the history costs more than what is in it.
            events = self._settled_events() if self._released else []
            now = self._clock.now
            tag = tag if tag is not None else [OTHER]
            allocator = self.allocator
            try:
                block = allocator.malloc(requested, stream, now)
            except OutOfMemory as error:
                if events:
                    self.history.keep(events)
                requested_bytes = error.requested_bytes
                self._tell_observers(requested_bytes)
            else:
                if allocator.waited_until > now:
                    self._clock.jump(allocator.waited_until)
                block.tag, block.since = tag, now
                if self.stacks is not None:
                    self.stacks[self._event_count] = frames.of_program()
                self._event_count += 1
                reserved = allocator.reserved.current
                event = (now, allocator.allocated_now, reserved, tag, block.bytes, block.address, stream)
                if events:
                    events.append(event)
                    self.history.keep(events)
                else:
                    self.history.keep(event)
                return block
        raise torch.OutOfMemoryError(self._out_of_memory_text(requested_bytes))

    def pass_through(self, requested: int, stream: int, category: int) -> None:
        """Bytes that live as long as one operation: `allocate` and `release`, mostly without moving blocks."""
        with self._lock:
            if self._released:
                self._settle()
            allocator = self.allocator
            size, address = allocator.pass_through(requested, stream)
            if size:
                now, tag = self._clock.now, [category]
                allocated, reserved = allocator.allocated_now, allocator.reserved.current
                if self.stacks is not None:
                    self.stacks[self._event_count] = frames.of_program()
                self._event_count += 2
                taken = now, allocated + size, reserved, tag, size, address, stream
                self.history.keep([taken, (now, allocated, reserved, tag, -size, address, stream)])
                return
        self.release(self.allocate(requested, stream, [category]))

    def release(self, block: Block) -> None:
        """The storage of `block` is gone. Safe at any moment, in any thread."""
        until = 0.0
        if block.uses and self.queue is not None:
            # `insert_events`: an event on every stream that was recorded for it.
            until = max(self.queue.ready_at(stream) for stream in block.uses)
        self._released.append((self._clock.now, until, block))

    def record_stream(self, block: Block, stream: int) -> None:
        """`recordStream`: after its release the block is not reused before `stream` has passed that point."""
        if stream != block.stream:
            block.uses = {*block.uses, stream}

    def require(self, requested: int) -> None:
        """Raise as `allocate` would when `requested` bytes can never fit, before anything is computed."""
        if requested >= _EXABYTE:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate more than 1EB memory. [simulated by vgpu]"
            )
        if requested > self.allocator.limit_bytes - self.settled().current("allocated_bytes"):
            rounded = CachingAllocator.segment_bytes(CachingAllocator.round_bytes(requested))
            self._tell_observers(rounded)
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
            released = self.allocator.empty_cache()
            self._clock.jump(self.allocator.waited_until)
            if released:
                self._note(self._clock.now, [OTHER], 0, 0, 0)

    def begin_private(self, pool: int) -> None:
        """A graph that is captured allocates from a private pool (`beginAllocateToPool`), and keeps it."""
        allocator = self.settled()
        allocator.private = pool
        allocator.keep_private(pool)

    def end_private(self) -> None:
        """What is allocated from now on is nobody's own."""
        self.settled().private = 0

    def release_private(self, pool: int) -> None:
        """A graph that kept the pool is gone."""
        self.settled().release_private(pool)

    def set_fraction(self, fraction: float) -> None:
        """`torch.cuda.set_per_process_memory_fraction`."""
        self.fraction = fraction
        self.allocator.limit_bytes = min(int(self._spec.memory_bytes * fraction), self.allocator.capacity_bytes)

    def reset_peaks(self) -> None:
        """`torch.cuda.reset_peak_memory_stats`."""
        with self._lock:
            self._settle()
            self.allocator.reset_peaks()
            self._peak_from = max(self._event_count - 1, 0)

    def free_bytes(self) -> int:
        """What cudaMemGetInfo calls free: the card less the context and every reserved segment."""
        return self.allocator.capacity_bytes - self.settled().current("reserved_bytes")

    def _settle(self) -> None:
        if self._released:
            self.history.keep(self._settled_events())

    def _settled_events(self) -> list[_Event]:
        """Do every noted release; the caller sends the history what is returned."""
        events: list[_Event] = []
        while self._released:
            moment, until, block = self._released.popleft()
            tag, size, address, stream = block.tag, block.bytes, block.address, block.stream
            allocator = self.allocator
            allocator.free(block, until)
            tag = tag if tag is not None else [OTHER]
            self._event_count += 1
            events.append((moment, allocator.allocated_now, allocator.reserved.current, tag, -size, address, stream))
        return events

    def _note(self, moment: float, tag: list[int], change: int, address: int, stream: int) -> None:
        allocator = self.allocator
        self._keep((moment, allocator.allocated_now, allocator.reserved.current, tag, change, address, stream))

    def _keep(self, event: _Event) -> None:
        if self.stacks is not None and event[4] > 0:
            self.stacks[self._event_count] = frames.of_program()
        self._event_count += 1
        self.history.keep(event)

    def _tell_observers(self, requested_bytes: int) -> None:
        for observer in list(self.observers):
            allocated = self.allocator.current("allocated_bytes")
            observer(self._index, requested_bytes, allocated, self.allocator.capacity_bytes - allocated)

    def _read(self) -> list[_Event]:
        events: list[_Event] = self.history.tell(audit_events.READ)
        return events

    @property
    def timeline(self) -> list[MemorySample]:
        """Every change of memory so far."""
        with self._lock:
            self._settle()
            return [MemorySample(*event[:3]) for event in self._read()]

    def events(self, start: int = 0) -> list[MemoryEvent]:
        """Every change of memory from the `start`-th on, with the block that changed."""
        with self._lock:
            self._settle()
            return [MemoryEvent(*event) for event in self._read()[start:]]

    def event_count(self) -> int:
        """How many changes there were so far."""
        with self._lock:
            self._settle()
            return self._event_count

    def latest(self) -> tuple[int, int]:
        """Bytes allocated now, and the most since this was asked the last time, whatever peaks a program reset."""
        with self._lock:
            self._settle()
            latest: tuple[int, int] = self.history.tell(audit_events.LATEST)
            with contextlib.suppress(ValueError):
                if self.living(None) > latest[0]:
                    _audit(audit_events.BROKEN_EVENT, "memory")
            return latest

    def peak_event(self) -> int:
        """Which change brought the peak since the last reset (an index into `events`; -1: none)."""
        with self._lock:
            self._settle()
            events = self._read()
            candidates = range(self._peak_from, len(events))
            return max(candidates, key=lambda index: events[index][1], default=-1)

    def _out_of_memory_text(self, requested_bytes: int) -> str:
        allocator, spec = self.allocator, self._spec
        reserved, allocated = allocator.current("reserved_bytes"), allocator.current("allocated_bytes")
        allowed = f"{format_bytes(allocator.limit_bytes)} allowed; " if self.fraction < 1.0 else ""
        kept = allocator.kept_bytes()
        pools = f"with {format_bytes(kept)} allocated in private pools (e.g., CUDA Graphs), " if kept else ""
        tip = "" if allocator.settings.expandable_segments else _TIP
        return (
            f"CUDA out of memory. Tried to allocate {format_bytes(requested_bytes)}. "
            f"GPU {self._index} has a total capacity of {format_bytes(spec.memory_bytes)} of which "
            f"{format_bytes(allocator.capacity_bytes - reserved)} is free. "
            f"Including non-PyTorch memory, this process has "
            f"{format_bytes(reserved + spec.context_bytes)} memory in use. {allowed}"
            f"Of the allocated memory {format_bytes(allocated + kept)} is allocated by PyTorch, {pools}and "
            f"{format_bytes(reserved - allocated - kept)} is reserved by PyTorch but unallocated.{tip} "
            f"[simulated by vgpu: {spec.name}]"
        )
