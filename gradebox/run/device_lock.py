"""Whose turn it is on a real device: requests that measure have it alone, all others share it.

The lock holds between threads and between processes of one machine, so that several judges can grade on one device. The
kernel releases it however its holder ends. Not for simulated devices, whose time nobody disturbs, and not between
containers or users with folders for temporary files of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.005


class DeviceLock:
    """A readers-writer lock on one piece of hardware. Without a name it locks nothing.

    A request that wants the device alone goes first. While it waits, no other request comes in, so it waits only for
    the requests that run now. If the others went first, all measurements would come at the end, when nothing else is
    left to run. With the seconds that each check took on an H100, and eight sandboxes, a model gives 56 s for this
    order and 107 s for the other one.
    """

    def __init__(self, hardware: str) -> None:
        """`hardware` is the same text in all processes that use this device
        (`gradebox.sandbox.devices.Device.hardware`)."""
        self._path: Path | None = None
        if hardware:
            digest = hashlib.sha256(hardware.encode()).hexdigest()[:16]
            self._path = Path(tempfile.gettempdir(), f"gpulabs-device-{digest}")

    @contextlib.contextmanager
    def held(self, *, alone: bool, abandoned: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait for the device, and hold it: `alone`, or shared with others. `abandoned` ends the wait without it.

        Raises:
            InterruptedError: the wait was abandoned.
        """
        if self._path is None:
            yield
            return
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        with contextlib.ExitStack() as stack:
            with contextlib.ExitStack() as at_the_door:
                door = at_the_door.enter_context(_opened(self._path.with_suffix(".door")))
                _take(door, kind, abandoned)
                lock = stack.enter_context(_opened(self._path.with_suffix(".lock")))
                _take(lock, kind, abandoned)
            yield


def _take(lock: int, kind: int, abandoned: Callable[[], bool]) -> None:
    """Not in one blocking call: a thread that waits in it could not learn that the grading has ended."""
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            return
        if abandoned():
            raise InterruptedError("the grading ended while a request waited for the device")
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of its own for each request: locks belong to descriptors, not to processes."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC  # it may be another user's file; reading is enough
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
