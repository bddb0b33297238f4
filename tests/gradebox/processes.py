"""What processes are there, by /proc, and waiting for something."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tests.proc import proc


def parents() -> dict[int, int]:
    """The parent of every process."""
    parent_of: dict[int, int] = {}
    for stat in proc().glob("[0-9]*/stat"):
        try:
            parent_of[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return parent_of


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, the innermost ones last."""
    by_parent = parents()
    pids, level = [], [pid]
    while level := sorted(child for child, parent in by_parent.items() if parent in level):
        pids += level
    return pids


def cpu_seconds(pid: int) -> float:
    try:
        fields = (proc() / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def eventually(condition: Callable[[], bool], seconds: float = 300.0) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not condition():
        time.sleep(0.05)
    return condition()
