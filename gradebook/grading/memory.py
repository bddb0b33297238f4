"""How much memory this process and everything it started use at most, sampled while something runs. Linux only."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

_INTERVAL_SECONDS = 0.25
_SHARE_OF_TIME = 0.05
"""Of one core, that sampling may take: on a machine with hundreds of processes each look reads hundreds of files, and
took more of the judge's time than its judging did."""


class PeakMemory:
    """Samples while it is entered; see `used_bytes` for what counts.

    Samples are estimates, which cost little; where one is higher than all before, it is looked at closely, since a
    process whose parent is gone looks like one that needs all its pages for itself.
    """

    def __init__(self, root: int | None = None, least: int = 0) -> None:
        """`root` is the process to watch, with all that it starts; None: this one.

        `least` is what it is known to need at rest: what is over before the first sample is taken for that.
        """
        self.bytes = least
        self._root = os.getpid() if root is None else root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak memory", daemon=True)

    def __enter__(self) -> Self:
        if not self.bytes:
            self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        wait = _INTERVAL_SECONDS
        while not self._over.wait(wait):
            begun = time.thread_time()
            self._look()
            wait = max(_INTERVAL_SECONDS, (time.thread_time() - begun) / _SHARE_OF_TIME)

    def _look(self) -> None:
        if used_bytes(self._root) > self.bytes:
            self.bytes = max(self.bytes, used_bytes(self._root, closely=True))


def used_bytes(root: int, *, closely: bool = False) -> int:
    """What the process `root` and its descendants have in memory for themselves (anonymous and shared memory) now.

    A forked child begins with its parent's pages, so only what it has beyond its parent counts. `closely`: the kernel
    counts which pages are shared, and with how many; that takes milliseconds for each process, and where it may not be
    asked the estimate stands. 0 if `/proc` does not say.
    """
    parents, resident = {}, {}
    for pid in _pids():
        if (status := _status(pid)) is not None:
            parents[pid], resident[pid] = status
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    total, open_ = 0, [root] if root in resident else []
    while open_:
        pid = open_.pop()
        beyond = resident[pid] if pid == root else max(0, resident[pid] - resident.get(parents[pid], 0))
        exact = _proportional(pid) if closely else None
        total += beyond if exact is None else exact
        open_ += children.get(pid, ())
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


def _proportional(pid: int) -> int | None:
    """Bytes of anonymous and shared memory, each page divided by how many processes share it; None where untold."""
    total = None
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name in ("Pss_Anon", "Pss_Shmem"):
                    total = (total or 0) + int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return total
