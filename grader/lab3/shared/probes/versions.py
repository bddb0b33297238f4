"""What became of files: versions of one, and how many bytes a process has written to any of them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PosixPath
from typing import Any

from grader.shared.probes.kept import function, notes
from grader.shared.probes.looks import read_bytes

Version = tuple[int, int, int]
"""Distinguishes a file from what was there before; at last its size."""
_WRITTEN = re.compile(rb"wchar: (\d+)")


def noting_version(path: Path, note: Callable[[Version | None], None]) -> Callable[..., None]:
    """A hook for a model's forward passes."""
    return function(lambda *_: note(version(path)))


def version(path: Path) -> Version | None:
    """That of a file just now, if there is one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def whole_versions(seen: Sequence[Version | None]) -> int:
    """How many versions there were, without those that are too small to hold what the last one holds."""
    versions = [each for each in seen if each is not None]
    least = versions[-1][2] / 2 if versions else 0
    return len({each for each in versions if each[2] >= least})


def watch_names(name: str) -> Callable[[], list[bytes]]:
    """From now on, note what stands in a file at the moment in which it gets this name; a function that lists it.

    Writes through a mapping of memory are no events of a file: what is renamed first and filled in then looks whole.
    """
    note, noted = notes()
    text, split, read, kinds = os.fspath, os.path.basename, read_bytes, (str, PosixPath)

    @function
    def reading(source: str) -> None:
        note(read(source))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and all(type(each) in kinds for each in arguments[:2]):
            source, target = map(text, arguments[:2])
            if split(target) == name:
                with contextlib.suppress(OSError):
                    reading(source)

    sys.addaudithook(hook)
    return noted


def written_bytes() -> int | None:
    """Bytes that this process has written to files and pipes, whatever became of them; None if nobody counts."""
    with contextlib.suppress(OSError):
        if found := _WRITTEN.search(read_bytes("/proc/self/io")):
            return int(found[1])
    return None
