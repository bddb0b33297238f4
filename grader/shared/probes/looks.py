"""Looks at files and states that a submission cannot turn to something else: all that they use was bound before it.

A submission may replace `Path.rglob`, `Path.is_file` or `hashlib.sha256` while a probe runs, and put them back. What
these functions call are defaults of theirs, which the sandbox watches. Imports nothing of `grader`.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

PathLike = Path | str
_WRITTEN = re.compile(rb"wchar: (\d+)")


def is_file(path: PathLike, *, text: Callable[..., str] = os.fspath, stat: Callable[..., Any] = os.stat) -> bool:
    """Whether there is a regular file."""
    try:
        mode: int = stat(text(path)).st_mode
    except OSError:
        return False
    return mode & 0o170000 == 0o100000


def exists(path: PathLike, *, text: Callable[..., str] = os.fspath, stat: Callable[..., Any] = os.stat) -> bool:
    """Whether there is anything."""
    try:
        stat(text(path))
    except OSError:
        return False
    return True


def names(
    folder: PathLike, *, text: Callable[..., str] = os.fspath, listed: Callable[..., Any] = os.listdir
) -> list[str]:
    """What is in a folder, sorted; nothing if there is no folder."""
    try:
        return sorted(listed(text(folder)))
    except OSError:
        return []


def files_below(
    folder: PathLike, *, text: Callable[..., str] = os.fspath, scanned: Callable[..., Any] = os.scandir
) -> list[str]:
    """The files below a folder by their paths from there, sorted; links are not followed."""

    def walk(place: str, before: str) -> Iterator[str]:
        try:
            entries = list(scanned(place))
        except OSError:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from walk(f"{place}/{entry.name}", f"{before}{entry.name}/")
            elif entry.is_file():
                yield before + entry.name

    return sorted(walk(text(folder), ""))


def read_bytes(
    path: PathLike,
    *,
    text: Callable[..., str] = os.fspath,
    opened: Callable[..., int] = os.open,
    read: Callable[[int, int], bytes] = os.read,
    close: Callable[[int], None] = os.close,
    flags: int = os.O_RDONLY | os.O_CLOEXEC,
) -> bytes:
    """All of a file.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = opened(text(path), flags)
    parts = []
    try:
        while part := read(descriptor, 1 << 20):
            parts.append(part)
    finally:
        close(descriptor)
    return b"".join(parts)


def written_bytes() -> int | None:
    """Bytes that this process has written to files and pipes, whatever became of them; None if nobody counts."""
    try:
        found = _WRITTEN.search(read_bytes("/proc/self/io"))
    except OSError:
        return None
    return None if found is None else int(found[1])


def read_text(path: PathLike) -> str | None:
    """A text in UTF-8; None if there is no file."""
    return read_bytes(path).decode("utf-8") if is_file(path) else None


def fingerprint(value: object, *, sha256: Callable[[], Any] = hashlib.sha256) -> str:
    """Of a state dictionary: equal bits, equal text."""
    digest = sha256()

    def take(item: object) -> None:
        if isinstance(item, Tensor):
            content = item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            digest.update(str(item.dtype).encode() + content)
        elif isinstance(item, Mapping):
            for key in sorted(item, key=str):
                digest.update(str(key).encode())
                take(item[key])
        elif isinstance(item, (list, tuple)):
            digest.update(b"[")
            for each in item:
                take(each)
        elif not callable(item):
            digest.update(repr(item).encode())

    take(value)
    result: str = digest.hexdigest()
    return result[:16]


def generators(
    device: torch.device,
    *,
    of_torch: Callable[[], Tensor] = torch.get_rng_state,
    of_numpy: Callable[..., Any] = np.random.get_state,
    of_python: Callable[[], object] = random.getstate,
) -> dict[str, str]:
    """Where the generators of random numbers are, by name; equal if they would draw the same."""
    numpy_state = of_numpy(legacy=True)
    states = {
        "PyTorch's": fingerprint(of_torch()),
        "NumPy's": fingerprint([part.tolist() if isinstance(part, np.ndarray) else part for part in numpy_state]),
        "Python's": fingerprint(of_python()),
    }
    if device.type == "cuda":
        states["the GPU's"] = fingerprint(torch.cuda.get_rng_state())
    return states
