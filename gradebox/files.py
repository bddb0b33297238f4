"""Reading and writing files in folders that somebody else may have prepared: links, pipes and giants in their place.

For the folder of a report, which may lie beside a submission, and for what `gpulabs next` reads of the labs.
"""

from __future__ import annotations

import os
import stat
import tempfile
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


def replace(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all, in the place of whatever has that name, a link included."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # never one that is there
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
