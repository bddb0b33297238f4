"""How much memory this process and everything it started use at most, sampled while something runs. Linux only."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

_INTERVAL_SECONDS = 0.25


class PeakMemory:
    """Samples while it is entered.

    Counts what this process and its descendants have in memory for themselves (anonymous and shared memory). A forked
    child begins with its parent's pages, so only what it has beyond its parent counts.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak memory", daemon=True)

    def __enter__(self) -> Self:
        self.bytes = max(self.bytes, used_bytes(os.getpid()))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(_INTERVAL_SECONDS):
            self.bytes = max(self.bytes, used_bytes(os.getpid()))


def used_bytes(root: int) -> int:
    """What the process `root` and its descendants use now; 0 where `/proc` cannot tell."""
    parents, resident = {}, {}
    for pid in _pids():
        if (status := _status(pid)) is not None:
            parents[pid], resident[pid] = status
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    total, open_ = resident.get(root, 0), [root]
    while open_:
        parent = open_.pop()
        for pid in children.get(parent, ()):
            total += max(0, resident[pid] - resident.get(parent, 0))
            open_.append(pid)
    return total


def _pids() -> Iterator[int]:
    try:
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:
        return


def _status(pid: int) -> tuple[int, int] | None:
    """Parent, and bytes of anonymous and shared memory."""
    parent, resident = 0, 0
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == "PPid":
                    parent = int(value)
                elif name in ("RssAnon", "RssShmem"):
                    resident += int(value.split()[0]) * 1024
    except (OSError, ValueError):
        return None
    return parent, resident
