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

    Readers go first: a request that measures begins once nobody else has anything to run. Every grading comes to such
    a request or to its end, so it always begins.
    """

    def __init__(self, hardware: str) -> None:
        """`hardware` is the same text in all processes that use this device (`gradebox.devices.Device.hardware`)."""
        self._path: Path | None = None
        if hardware:
            digest = hashlib.sha256(hardware.encode()).hexdigest()[:16]
            self._path = Path(tempfile.gettempdir(), f"gpulabs-device-{digest}.lock")

    @contextlib.contextmanager
    def held(self, *, alone: bool, abandoned: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait for the device, and hold it: `alone`, or shared with others. `abandoned` ends the wait without it.

        Raises:
            InterruptedError: the wait was abandoned.
        """
        if self._path is None:
            yield
            return
        lock = _opened(self._path)
        try:
            kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
            # Not a blocking call: a thread that waits in it could not be told that the grading has ended.
            while not _taken(lock, kind):
                if abandoned():
                    raise InterruptedError("the grading ended while a request waited for the device")
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(lock)


def _taken(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(path: Path) -> int:
    """A descriptor of its own for each request: locks belong to descriptors, not to processes."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # perhaps another user's; reading is enough
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
