"""Reading and writing files in folders that somebody else may have prepared: links, pipes and giants in their place.

For the folder of a report, which may be next to a submission, and for what `gpulabs next` reads of the labs.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_BYTES = 16 * 2**20


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """The text of a regular file; what is no UTF-8 in it is replaced.

    Raises:
        OSError: there is none, it is a link, a pipe or a device, or it is larger than `max_bytes`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no regular file")
        if status.st_size > max_bytes:
            raise OSError(f"{path} is larger than {max_bytes} bytes")
        return file.read(max_bytes).decode("utf-8", "replace")


def replace(path: Path, text: str) -> Path:
    """Write a file whole or not at all, instead of whatever has that name, a link included."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # never one that is there
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    return path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Hand out a temporary path next to `path`, in folders that are made; move it there when the block ends well.

    Raises:
        OSError: the folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
