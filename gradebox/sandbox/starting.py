"""The judge's end of a server's beginning and end.

A server is forked from a process that has everything imported (`forkserver.py`). Sandboxes that want the same imported
share that process while one of them is open. Not for what a server is asked (`sandbox.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import IO

from gradebox.common import prefork
from gradebox.sandbox import codec, wire
from gradebox.sandbox.types import Environment

_STOP_SECONDS = 20.0
_GONE_TRIES, _GONE_SECONDS = 1000, 1e-3
_FORK_SECONDS = 0.5
"""A server that has not begun to live after this long, when it is to end, is still to be forked."""
_Folders = tuple[list[str], list[str]]

_running: dict[str, _ForkServer] = {}
_lock = threading.Lock()
_kept = 0


class Server:
    """A started server, seen from the judge."""

    def __init__(self, forked_by: _ForkServer, channel: socket.socket, lifeline: int, life: int) -> None:
        self._forked_by = forked_by
        self.channel = channel
        """Frames go over it in both directions."""
        self._lifeline = lifeline
        self._life = life
        self._one_at_a_time = threading.Lock()
        self._said = b""

    @property
    def pid(self) -> int:
        """The guard's, the ancestor of every process of the sandbox; 0 before there is one."""
        return self._await_pid(0.0)

    def abandon(self) -> None:
        """Have it end, and everything below it, soon; from any thread."""
        with self._one_at_a_time, contextlib.suppress(OSError):
            if self._lifeline >= 0:
                os.write(self._lifeline, b"x")

    def stop(self, *, leave_folder: bool) -> None:
        """End it; returns when the guard has seen everything end.

        Without `leave_folder` the guard removes the sandbox's folder, even if we are killed meanwhile.
        """
        if leave_folder:
            self.abandon()
        with self._one_at_a_time:  # the number may be another file's from here on
            os.close(self._lifeline)
            self._lifeline = -1
        self.channel.close()
        if not self._await_pid(_FORK_SECONDS):
            self._forked_by.end()  # it is still importing, and would start this server after all
        elif not self._await_end(_STOP_SECONDS):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._await_end(_STOP_SECONDS)
        os.close(self._life)
        _release(self._forked_by)

    def _await_pid(self, seconds: float) -> int:
        if not self._said and _readable(self._life, seconds):
            self._said = os.read(self._life, 32)
        return int(self._said or b"0")

    def _await_end(self, seconds: float) -> bool:
        if not _readable(self._life, seconds):
            return False
        for _ in range(_GONE_TRIES):  # its descriptors close a moment before it is gone
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(_GONE_SECONDS)
        return True


def start(
    environment: Environment, preload: Sequence[str], optional: Sequence[str], log: IO[bytes], *, many: bool = True
) -> Server:
    """Have a server forked; it listens on its channel when it has come to life.

    Args:
        environment: what the course wants in its processes.
        preload: modules that are imported before anything is forked.
        optional: those of `preload` that may be missing.
        log: where the server's own output goes.
        many: whether so much will be forked that memory is arranged for it first, for a second of a core.
    """
    here, there = socket.socketpair()
    lifeline, ours = os.pipe()
    life, theirs = os.pipe()
    descriptors = [there.fileno(), lifeline, theirs, log.fileno()]
    try:
        with _lock:
            forked_by = _fork_server(environment, preload, optional, log, many)
            try:
                forked_by.fork(descriptors)
            except OSError:  # it has ended: perhaps memory was short
                forked_by.end()
                forked_by = _fork_server(environment, preload, optional, log, many)
                forked_by.fork(descriptors)
            forked_by.users += 1
    finally:
        there.close()
        os.close(lifeline)
        os.close(theirs)
    return Server(forked_by, here, ours, life)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Let what is imported for one sandbox serve those that are opened later, too, until the end of the block."""
    global _kept
    _kept += 1
    try:
        yield
    finally:
        _kept -= 1
        if not _kept:
            end_unused()


def end_unused() -> None:
    """End what has imported for sandboxes that are closed."""
    with _lock:
        for server in [server for server in _running.values() if not server.users]:
            server.end()


class _ForkServer:
    """The process, by the modules that it imports."""

    def __init__(self, key: str, order: Mapping[str, object], log: IO[bytes]) -> None:
        self._key = key
        self.users = 0
        begun = prefork.take()
        self._control, self._process = begun.control, begun.process
        with contextlib.suppress(OSError, wire.Closed):  # the caller that waits for a server notices it, with the log
            socket.send_fds(self._control, [b"l"], [log.fileno()])
            wire.send(self._control.fileno(), codec.dump_json(order))

    def fork(self, descriptors: list[int]) -> None:
        """Have a server forked, now or when everything is imported.

        Raises:
            OSError: the process has ended.
        """
        socket.send_fds(self._control, [b"s"], descriptors)

    def end(self) -> None:
        """End it. Servers that it has forked go on."""
        if _running.get(self._key) is self:
            del _running[self._key]
        self._control.close()
        self._process.kill()
        self._process.wait()


def _fork_server(
    environment: Environment, preload: Sequence[str], optional: Sequence[str], log: IO[bytes], many: bool
) -> _ForkServer:
    """The one that runs for these imports, or a new one."""
    first, last = _search_path(environment, preload)
    order = {"environment": asdict(environment), "preload": list(preload), "optional": list(optional), "many": many,
             "first": first, "last": last}  # fmt: skip
    key = json.dumps([os.getpid(), sys.executable, prefork.variables(), order])
    if key not in _running:
        _running[key] = _ForkServer(key, order, log)
    return _running[key]


def _release(server: _ForkServer) -> None:
    with _lock:
        server.users -= 1
        if not server.users and not _kept:
            server.end()


def _readable(descriptor: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1e3))


def _search_path(environment: Environment, preload: Sequence[str]) -> _Folders:
    """Folders that modules come from, for an interpreter that starts without our `sys.path` (`prefork.in_order`)."""
    names = ["gradebox", *environment.importable, *environment.found, *(name.partition(".")[0] for name in preload)]
    found = (prefork.folder_of(name) for name in names if name != environment.course)
    first, last = prefork.in_order(list(dict.fromkeys(folder for folder in found if folder is not None)))
    # What happens to lie next to the course is taken for no module that Python has.
    return first, [*last, *filter(None, [environment.course_parent])]
