"""The folder that a judge works in: it goes with the grading, and when that was killed, with the next one's start.

The process that uses a folder holds a lock on it, which the kernel releases however that process ends. Not for what a
sandbox keeps (`sandbox/server.py`: its guard stays behind and removes that).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "gpulabs-work-"
_FRESH_SECONDS = 60.0
"""A folder that is younger may not have been locked yet."""


@contextlib.contextmanager
def locked_workdir() -> Iterator[tuple[str, int]]:
    """An empty folder that nobody else can read, and the descriptor that locks it, for the judge to inherit.

    Raises:
        OSError: no folder can be made.
    """
    _remove_left_behind(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # some file systems know no locks; then folders are left to be found
                fcntl.flock(lock, fcntl.LOCK_SH)
            yield folder, lock
        finally:
            os.close(lock)


def _remove_left_behind(folder: Path) -> None:
    """Remove the folders of this user's that nobody holds any more."""
    try:
        paths = [entry.path for entry in os.scandir(folder) if entry.name.startswith(PREFIX)]
    except OSError:
        return
    for path in paths:
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                about = os.fstat(lock)
                ours = about.st_uid == os.getuid() and stat.S_IMODE(about.st_mode) == 0o700
                if ours and time.time() - about.st_mtime > _FRESH_SECONDS:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
