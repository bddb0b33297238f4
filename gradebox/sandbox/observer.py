"""What the operating system reports to the supervisor of a run: file events, files, messages on loopback.

A probe names one of `READINGS` (`SystemReading`), and the judge gets it from here: a submission can change a file, but
not what happened to it. Runs in the supervisor. Not for deciding what follows from it (a lab's checks).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

from gradebox.sandbox import linux

MAX_EVENTS = 16384
_MAX_FILES = 16384
_MAX_FOLDERS = 1024
"""A run with more of them has hidden something among them, and its check is void."""
CACHES = (".matplotlib", ".cache", ".inductor", ".triton")
"""Folders of libraries in the working directory, as `worker.py` names them, which nobody looks into."""

_IN_MODIFY, _IN_CLOSE_WRITE, _IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE = 0x2, 0x8, 0x40, 0x80, 0x100, 0x200
_IN_ISDIR, _IN_Q_OVERFLOW = 0x40000000, 0x4000
_ACTS = {
    _IN_CREATE: "created",
    _IN_MODIFY: "written",
    _IN_CLOSE_WRITE: "closed",
    _IN_MOVED_FROM: "moved away",
    _IN_MOVED_TO: "moved here",
    _IN_DELETE: "deleted",
}
_EVENT = struct.Struct("=iIII")


@dataclass(frozen=True)
class SystemReading:
    """In what a probe returns: one of `READINGS`, which the supervisor fills in, stands here."""

    name: str


class FileEvent(TypedDict):
    """One thing that happened to a file below the working directory."""

    act: str
    """ "created", "written", "closed" (after it was open for writing), "moved away", "moved here" or "deleted"."""
    path: str
    """Relative to the working directory."""


READINGS = ("file_events", "files", "loopback_bytes")
"""`list[FileEvent]` in their order, repeated writes once; `dict[str, int]`, bytes of the files that are left; `int`,
bytes that went over the loopback interface. Each is None if the system does not report it."""


class Observer:
    """Watches the working directory of a run from its begin to its end."""

    def __init__(self, folder: str, *, own_network: bool) -> None:
        """`own_network`: whether nobody else's messages go over this process's loopback interface."""
        self._folder = folder
        self._own_network = own_network
        self._events: list[FileEvent] = []
        self.flooded = False
        """Whether there were more events, files or folders than are kept."""
        self._watched: dict[int, str] = {}
        self.descriptor = -1
        """Readable if there are events; -1 if the system reports none."""
        with contextlib.suppress(OSError, AttributeError):
            self.descriptor = linux.inotify()
            try:
                self._watch("")
            except (
                OSError
            ):  # no watch is left on this machine: it reports nothing, which does not mean that nothing happens
                os.close(self.descriptor)
                self.descriptor = -1

    def readings(self) -> dict[str, object]:
        """Every one of `READINGS`, as it is now."""
        self.read()
        return {
            "file_events": list(self._events) if self.descriptor >= 0 else None,
            "files": self._files(),
            "loopback_bytes": _loopback_bytes() if self._own_network else None,
        }

    def _watch(self, below: str) -> None:
        """Watch a folder, and those in it."""
        if below in CACHES:
            return
        if len(self._watched) >= _MAX_FOLDERS:
            self.flooded = True
            return
        folder = os.path.join(self._folder, below)
        self._watched[linux.inotify_add(self.descriptor, folder, sum(_ACTS))] = below
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(folder)) if below else ():
                path = os.path.join(below, entry)
                there = os.path.join(self._folder, path)
                if os.path.isdir(there) and not os.path.islink(there):
                    self._watch(path)
                else:
                    self._note("created", path)

    def _note(self, act: str, path: str) -> None:
        event: FileEvent = {"act": act, "path": path}
        if act == "written" and self._events and self._events[-1] == event:
            return
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
        else:
            self.flooded = True

    def read(self) -> None:
        """Take in what has happened, soon enough to watch a new folder before much happens in it."""
        while self.descriptor >= 0:
            try:
                data = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            for watch, mask, name in _split(data):
                if mask & _IN_Q_OVERFLOW:
                    self.flooded = True
                    continue
                if watch not in self._watched:
                    continue
                path = os.path.join(self._watched[watch], name)
                if mask & _IN_ISDIR:
                    if mask & (_IN_CREATE | _IN_MOVED_TO):
                        with contextlib.suppress(OSError):
                            self._watch(path)
                    continue
                self._note(next((act for bit, act in _ACTS.items() if mask & bit), "written"), path)

    def _files(self) -> dict[str, int]:
        files: dict[str, int] = {}
        for folder, folders, names in os.walk(self._folder):
            top = folder == self._folder
            folders[:] = sorted(name for name in folders if not (top and name in CACHES))
            for name in names:
                if len(files) == _MAX_FILES:
                    self.flooded = True
                    return files
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    files[os.path.relpath(path, self._folder)] = os.lstat(path).st_size
        return files


def _split(data: bytes) -> Iterator[tuple[int, int, str]]:
    start = 0
    while start < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, start)
        start += _EVENT.size
        name = data[start : start + length].rstrip(b"\0")
        start += length
        yield watch, mask, os.fsdecode(name).encode("utf-8", "replace").decode()


def _loopback_bytes() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/net/dev") as file:
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == "lo":
                return int(numbers.split()[0])
    return None
