"""What this process may use of the machine: cores, and memory."""

from __future__ import annotations

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux says how much memory a container is allowed."""


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int | None:
    """All memory of the machine, or what a container is allowed; None where nobody tells."""
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
