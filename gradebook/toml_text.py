"""Values as TOML that people read and git compares, and files that are written whole, durably, by one at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from gradebox.common import files


def quoted(text: str) -> str:
    """A basic string of TOML: JSON's escapes are among TOML's, but for DEL and lone surrogates."""
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")


def paragraphs(text: str) -> str:
    """A string of TOML in which each line of `text` is a line of the file."""
    if "\n" not in text:
        return quoted(text)
    return '"""\n' + "\n".join(quoted(line)[1:-1] for line in text.split("\n")) + '"""'


def replace_file(path: Path, text: str) -> Path:
    """Write a file whole or not at all, and on disk when this returns; folders above it are made.

    Raises:
        OSError: it cannot be written.
    """
    with files.atomic_write(path) as draft, draft.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    return path


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the file `path`, which is made, until the block ends; whoever else wants it waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
