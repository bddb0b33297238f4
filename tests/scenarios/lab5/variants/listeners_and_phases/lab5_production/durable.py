"""Files that are old or new, also after a power failure."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".unfinished-checkpoint"


def sweep(folder: Path) -> None:
    """Remove what killed writers left behind in a folder."""
    for leftover in folder.glob(f".*{UNFINISHED}"):
        leftover.unlink(missing_ok=True)


def force(folder: Path) -> None:
    """Force a folder's names to the disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content has the name `path` when the block has ended well, and is gone otherwise."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        with open(unfinished, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    force(path.parent)
