"""What became of files: versions of one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PosixPath
from typing import Any, NamedTuple

from torch import nn

from grader.shared.probes.kept import function, notes
from grader.shared.probes.looks import read_bytes
from grader.shared.probes.support import exact


class Version(NamedTuple):
    """A file as it was seen."""

    which: tuple[int, int]
    """Distinguishes it from what was there before."""
    size: int
    holds_weights: bool
    """Whether the weights that the model had just then are in it as they are, in no compressed form."""
    content: bytes


def noting_version(path: Path, note: Callable[[Version | None], None]) -> Callable[..., None]:
    """A hook for a model's forward passes."""
    return function(lambda model, *_: note(version(path, model)))


def version(path: Path, model: nn.Module) -> Version | None:
    """That of a file just now, if there is one."""
    try:
        status, content = path.stat(), read_bytes(str(path))
    except OSError:
        return None
    weight = exact(next(model.parameters()), "a parameter").detach().cpu().flatten()
    return Version((status.st_ino, status.st_mtime_ns), status.st_size, weight.numpy().tobytes() in content, content)


def whole_versions(seen: Sequence[Version | None]) -> int:
    """How many versions there were, without those that are too small to hold what the last one holds, or lack the
    weights of their time. These are looked for where a version is seen first: in the first pass after it was written.
    """
    versions = _versions(seen)
    if not versions:
        return 0
    last = versions[-1]
    return sum(2 * each.size >= last.size and each.holds_weights >= last.holds_weights for each in versions)


def content_of(seen: Sequence[Version | None], number: int) -> bytes:
    """What the file held in this one of its versions, counted from 1; nothing if that is none of them."""
    return b"".join(each.content for each in _versions(seen)[number - 1 : number]) if number else b""


def _versions(seen: Sequence[Version | None]) -> list[Version]:
    """Each as it was first seen, in this order."""
    versions: dict[tuple[int, int], Version] = {}
    for each in seen:
        if each is not None:
            versions.setdefault(each.which, each)
    return list(versions.values())


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
