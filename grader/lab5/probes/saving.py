"""Probe of Lab 5's checkpoint files: what is left of them when a process is killed, or a disk is full.

Files are looked at by loading them; the rest of a folder by name.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from grader.lab5.probes.pipeline import KEPT
from grader.lab5.probes.resume import CHECKPOINTS, names
from grader.shared.probes.ranks import disk_full_after
from grader.shared.probes.support import plain

FORM = re.compile(r"step-\d{8,}\.pt")
"""What a checkpoint is called."""


def saving(
    student: Any, *, steps: Sequence[int], killed: int, later: int, pairs: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Save at `steps`; be killed while saving; save `later`, also where the disk is full; look for the newest.

    In another folder, for each of the `pairs` of names, be killed writing the one, then write the other: `swept`.
    Files are looked at by loading them; the rest of a folder by name.
    """
    torch.set_num_threads(1)
    module = student.module(CHECKPOINTS)
    folder = Path("saved", "checkpoints")
    payload = {"numbers": torch.arange(20_000, dtype=torch.float64)}
    none = plain(_name(module.latest_checkpoint(folder)), "latest_checkpoint()")
    synced: list[str] = []
    sizes: list[int] = []
    real_fsync, real_replace, real_rename, real_remove = os.fsync, os.replace, os.rename, os.remove

    def fsync(fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        is_folder = os.path.isdir(f"/proc/self/fd/{number}")
        synced.append("folder" if is_folder else "file")
        if not is_folder:
            sizes.append(os.fstat(number).st_size)
        real_fsync(number)

    def rename(*given: Any, **named: Any) -> None:
        synced.append("name")
        real_replace(*given, **named)

    def remove(path: Any, *given: Any, **named: Any) -> None:
        if FORM.fullmatch(os.path.basename(os.fspath(path))):
            synced.append("old one")
        real_remove(path, *given, **named)

    all_of_them = folder.with_name("all")
    for step in steps:
        module.write_checkpoint(module.checkpoint_path(all_of_them, step), {"steps": step})
    everything = names(all_of_them)
    for step in steps:
        module.write_checkpoint(module.checkpoint_path(folder, step), {**payload, "steps": step}, keep=2)
    kept = names(folder)
    (folder / "step-notes.pt").write_text("no checkpoint")
    was_killed = _killed_while_writing(module, module.checkpoint_path(folder, killed), {**payload, "steps": killed})
    after_kill = plain(_name(module.latest_checkpoint(folder)), "latest_checkpoint()")
    os.fsync, os.replace, os.rename, os.remove, os.unlink = fsync, rename, rename, remove, remove
    try:
        module.write_checkpoint(module.checkpoint_path(folder, later), {**payload, "steps": later}, keep=2)
    finally:
        os.fsync, os.replace, os.rename = real_fsync, real_replace, real_rename
        os.remove = os.unlink = real_remove
    cleaned = names(folder)
    written = Path(module.checkpoint_path(folder, later))
    lacking = written.stat().st_size - max(sizes, default=0) if written.is_file() else 0
    failed = False
    with disk_full_after(60_000):
        try:
            module.write_checkpoint(module.checkpoint_path(folder, later), {**payload, "steps": later + 1}, keep=2)
        except Exception as error:
            KEPT.append(error)
            failed = True
    after_failure = names(folder)
    newest = module.latest_checkpoint(folder)
    read = plain(module.read_checkpoint(newest)["steps"], "read_checkpoint()") if newest else None
    swept = []
    for first, second in pairs:
        _killed_while_writing(module, folder.with_name("swept") / first, payload)
        module.write_checkpoint(folder.with_name("swept") / second, payload)
        swept.append(names(folder.with_name("swept")))
    # A disk that lied: the newest is damaged. Times of files say the opposite of their numbers.
    bad = module.checkpoint_path(folder, 2 * later)
    torch.save({**payload, "steps": 2 * later}, bad)
    if (touched := module.checkpoint_path(folder, steps[-1])).exists():
        os.utime(touched, (4e9, 4e9))
    content = bad.read_bytes()
    older = {}
    for how, left in (
        ("is cut in two", content[:40_000]),
        ("is empty", b""),
        ("holds zeros", bytes(len(content))),
        ("holds somebody's text", b"<!DOCTYPE html>\n<title>503</title>\n" * 40),
        ("has lost its beginning", content[5_000:]),
        ("holds zeros after its beginning", content[:5_000] + bytes(len(content) - 5_000)),
    ):
        bad.write_bytes(left)
        older[how] = plain(_name(module.latest_checkpoint(folder)), "latest_checkpoint()")
    bad.unlink()
    bad.mkdir()
    older["is a folder"] = plain(_name(module.latest_checkpoint(folder)), "latest_checkpoint()")
    return {
        "lacking": lacking,
        "none": none,
        "everything": everything,
        "kept": kept,
        "killed": was_killed,
        "after_kill": after_kill,
        "cleaned": cleaned,
        "swept": swept,
        "synced": synced,
        "failed": failed,
        "after_failure": after_failure,
        "newest": plain(_name(newest), "latest_checkpoint()"),
        "steps": read,
        "older": older,
    }


def _killed_while_writing(module: Any, path: Path, state: dict[str, Any]) -> bool:
    """Write in another process, which is killed when it forces something to the disk or renames it; whether it was."""
    child = os.fork()
    if child == 0:
        for name in ("fsync", "fdatasync", "sync", "replace", "rename", "renames", "link"):
            setattr(os, name, lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL))
        try:
            module.write_checkpoint(path, state, keep=2)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _name(path: Any) -> str | None:
    return None if path is None else Path(path).name
