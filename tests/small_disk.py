"""A disk that is soon full, for one child process: nothing is written to the machine's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gradebox.sandbox import linux


def on_a_small_disk(folder: Path, size: str) -> Callable[[], None]:
    """For a child before it starts: `folder` is a file system of its own that holds no more than `size`."""

    def prepare() -> None:
        uid, gid = os.getuid(), os.getgid()
        linux.unshare(linux.CLONE_NEWNS | (0 if uid == 0 else linux.CLONE_NEWUSER))
        if uid != 0:
            linux.map_own_ids(uid, gid)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("tmpfs", str(folder), "tmpfs", 0, f"size={size},mode=1777")

    return prepare
