"""Write a file as a whole or not at all.

Not for checkpoints, which must also survive a power failure (Lab 5 builds that): nothing is forced to the disk here.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Hand out a temporary path next to `path`; move it to `path` when the block ends well, remove it otherwise.

    A reader sees the old file or the new one, never half of one, and an interrupted program (Ctrl-C) leaves nothing
    behind. Missing folders are made. `os.replace` is atomic on POSIX and Windows as long as both paths lie on one file
    system, which is why the temporary file is not under /tmp.

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
