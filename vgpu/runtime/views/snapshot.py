"""`torch.cuda.memory_snapshot` and the allocation history that `torch.cuda.memory._dump_snapshot` writes.

The format of torch/csrc/cuda/memory_snapshot.cpp, which pytorch.org/memory_viz reads, with the Python frames of each
allocation. Not here: bytes by category (`vgpu.runtime.memory.categories`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vgpu.runtime.memory.blocks import Block
from vgpu.runtime.memory.device_memory import DeviceMemory

if TYPE_CHECKING:
    from vgpu.runtime.machine import Machine


@dataclass
class History:
    """Since which change of each GPU's memory allocations are reported, and how many (`_record_memory_history`)."""

    enabled: bool = False
    starts: list[int] = field(default_factory=list)
    most: int = sys.maxsize

    def record(
        self,
        machine: Machine,
        enabled: str | None,
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        clear_history: bool = False,
        *_: Any,
        **__: Any,
    ) -> None:
        """Start ("all" keeps the history, "state" does not) or stop (None), as `_record_memory_history` says."""
        going_on = bool(self.starts) and not clear_history
        self.enabled, self.most = enabled is not None, max_entries
        if enabled != "all":
            self.starts = []
        elif not going_on:
            self.starts = [gpu.memory.event_count() for gpu in machine.gpus]
        for gpu in machine.gpus:
            if enabled != "all" or context is None:
                gpu.memory.stacks = None
            elif gpu.memory.stacks is None or not going_on:
                gpu.memory.stacks = {}


def take(machine: Machine, history: History) -> dict[str, Any]:
    """What `torch._C._cuda_memorySnapshot` returns."""
    segments = [segment for gpu in machine.gpus for segment in _segments(gpu.index, gpu.memory)]
    traces: list[list[dict[str, Any]]] = [[] for _ in machine.gpus]
    for gpu, start in zip(machine.gpus, history.starts, strict=False):
        # The newest entries stay: each is one action, of which a release is two (`RingBuffer`).
        traces[gpu.index] = list(deque(_trace(gpu.memory, start), maxlen=min(history.most, sys.maxsize)))
    memory = machine.gpus[0].memory
    settings = memory.settled().settings
    return {
        "segments": segments,
        "device_traces": traces,
        "external_annotations": [],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": memory.options, "max_split_size": _or_unlimited(settings.max_split_bytes),
            "garbage_collection_threshold": 0.0, "expandable_segments": settings.expandable_segments,
            "backend": "native", "simulated_by": f"vgpu: {machine.spec.name}",
        },
    }  # fmt: skip


def _or_unlimited(size: float) -> int:
    return -1 if size == float("inf") else int(size)


def _blocks(first: Block) -> Iterator[Block]:
    block: Block | None = first
    while block is not None:
        if block.mapped:
            yield block
        block = block.next


def _segments(device: int, memory: DeviceMemory) -> Iterator[dict[str, Any]]:
    allocator = memory.settled()
    for address, first in sorted(allocator.segments.items()):
        blocks = list(_blocks(first))
        if not blocks:
            continue
        yield {
            "device": device,
            "address": address,
            "total_size": sum(block.bytes for block in blocks),
            "allocated_size": sum(block.bytes for block in blocks if block.allocated),
            "active_size": sum(block.bytes for block in blocks if not block.is_free),
            "requested_size": sum(block.requested_bytes for block in blocks),
            "stream": first.stream,
            "segment_type": "small" if first.small else "large",
            "segment_pool_id": (0, first.private),
            "is_expandable": allocator.settings.expandable_segments,
            "frames": [],
            "blocks": [_described(block) for block in blocks],
        }


def _described(block: Block) -> dict[str, Any]:
    state = "active_allocated" if block.allocated else "active_pending_free" if block.waiting else "inactive"
    return {
        "address": block.address, "size": block.bytes, "requested_size": block.requested_bytes, "state": state,
        "frames": [],
    }  # fmt: skip


def _trace(memory: DeviceMemory, start: int) -> Iterator[dict[str, Any]]:
    stacks = memory.stacks or {}
    for number, event in enumerate(memory.events(start), start):
        if event.bytes == 0:
            continue
        common = {
            "addr": event.address, "size": abs(event.bytes), "stream": event.stream,
            "time_us": int(event.seconds * 1e6), "frames": stacks.get(number, []),
        }  # fmt: skip
        if event.bytes > 0:
            yield {"action": "alloc", **common}
        else:
            yield {"action": "free_requested", **common}
            yield {"action": "free_completed", **common}
