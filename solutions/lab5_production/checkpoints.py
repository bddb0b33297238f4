"""Given: checkpoint files that survive a kill and a power failure, and the random numbers that belong in them.

Not for what a training consists of (trainer.py), and not for several ranks: one of them calls this.
"""

import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

State = dict[str, Any]
"""What `torch.load(..., weights_only=True)` reads: tensors, numbers, strings, and lists, tuples and dicts of them."""

NAME = re.compile(r"step-(\d{8,})\.pt")
"""Checkpoints of a run, by the number of optimizer steps behind them. No other file of the folder is one."""


def checkpoint_path(folder: Path | str, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return Path(folder) / f"step-{step:08d}.pt"


def list_checkpoints(folder: Path | str) -> list[Path]:
    """The checkpoints of a folder, oldest first, whether they can be read or not; none if there is no folder."""
    folder = Path(folder)
    numbered = [(int(name[1]), path) for path in folder.glob("step-*.pt") if (name := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def write_checkpoint(path: Path | str, state: State, *, keep: int | None = None) -> None:
    """Write a checkpoint; afterwards the newest `keep` checkpoints of its folder are left.

    Whatever happens in the middle (a full disk, a kill, a power failure), every checkpoint that was there before can
    still be read, and `path` is what it was before or complete. For that, the state is written to a temporary file in
    the same folder, which is forced to the disk (`os.fsync`) *before* `os.replace` gives it its name; then the folder
    is forced to the disk, too. Old checkpoints go last.

    A killed process leaves its temporary file behind. The next write into the folder removes it: here one process
    writes at a time.

    Args:
        path: the file; missing folders are made.
        state: what to keep.
        keep: how many of `list_checkpoints(folder)` to keep, the newest, at least 1; None: all of them.

    Raises:
        OSError, RuntimeError: it could not be written; nothing that was there is lost, no temporary file is left.

    Source: Pillai et al. 2014, "All File Systems Are Not Created Equal" (OSDI), on why the file is forced to the disk
        before it is renamed.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for left_behind in path.parent.glob(".*.pt.tmp"):
        left_behind.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if keep is not None:
        for old in list_checkpoints(path.parent)[:-keep]:
            old.unlink()


def read_checkpoint(path: Path | str) -> State:
    """What `write_checkpoint` wrote, on the CPU.

    Raises:
        OSError: there is no such file.
        Exception: whatever `torch.load` says of a damaged one.
    """
    state: State = torch.load(path, map_location="cpu", weights_only=True)
    return state


def latest_checkpoint(folder: Path | str) -> Path | None:
    """The newest checkpoint of a folder that can be read; None if there is none.

    Newest is the one with the most steps; times of files say nothing once they were copied. A damaged file (a disk that
    lied) is passed over, for the one before it.
    """
    for path in reversed(list_checkpoints(folder)):
        try:
            read_checkpoint(path)
        except Exception as error:  # torch.load has no class of its own for damaged files
            print(f"{path} cannot be read ({type(error).__name__}): taking an older one")
        else:
            return path
    return None


def capture_random_state() -> State:
    """The state of every generator that a training may draw from, as `State`.

    Python's `random`, NumPy's global one, PyTorch's on the CPU and, where there is CUDA, on the current GPU.
    """
    state: Any = np.random.get_state(legacy=True)
    name, key, *rest = state
    return {
        "python": random.getstate(),
        "numpy": (name, key.tolist(), *rest),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_random_state(state: State) -> None:
    """Put every generator back to where `capture_random_state` found it. A GPU's is left alone where none was captured,
    or where there is no GPU now."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, key, *rest = state["numpy"]
    np.random.set_state((name, np.array(key, dtype=np.uint32), *rest))
    torch.set_rng_state(state["cpu"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
