"""What this process may use of the machine: cores, and memory."""

from __future__ import annotations

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux says how much memory a container is allowed."""
_BYTES_PER_GRADER = 3 * 2**29
"""A judge with its sandbox and what runs in it takes 1.0 to 1.3 GiB (benchmarks/results/whole_class.json)."""

_DEVICE_BYTES_PER_REQUEST = 6 * 2**30
"""Of a device's memory: what one check needs at most, and CUDA's context."""
_MOST_ON_HARDWARE = 8
"""More processes on one GPU wait for each other."""


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(device_bytes: int | None) -> int:
    """How many requests a real device takes at the same time: half as many as there are cores, eight at most.

    `device_bytes` is the device's memory, None if it is unknown: every request may have its share.
    """
    room = _MOST_ON_HARDWARE if device_bytes is None else max(1, device_bytes // _DEVICE_BYTES_PER_REQUEST)
    return max(1, min(cores() // 2, _MOST_ON_HARDWARE, room))


def graders(device_bytes: int | None = None, *, on_hardware: bool = False) -> int:
    """How many gradings the machine takes at the same time.

    One more than it has cores, as each waits for processes of its own now and then; as far as memory goes. On a real
    device (`on_hardware`, with so many bytes) as many as it takes requests.
    """
    if on_hardware:
        return side_by_side(device_bytes)
    memory = memory_bytes()
    room = cores() + 1 if memory is None else max(1, memory // _BYTES_PER_GRADER)
    return min(cores() + 1, room)


def memory_bytes() -> int | None:
    """All memory of the machine, or a container's limit; None if it is unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    for limit in _LIMITS:
        try:
            total = min(total, int(Path(limit).read_text()))
        except (OSError, ValueError):
            continue
    return total
