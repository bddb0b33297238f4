"""Files by mkstemp and rename; the folder is swept before each write."""

import os
import random
import re
import tempfile
from pathlib import Path

import numpy as np
import torch

NAME = re.compile(r"step-(\d{8,})\.pt")


def checkpoint_path(folder, step):
    return Path(folder, f"step-{step:08}.pt")


def list_checkpoints(folder):
    if not os.path.isdir(folder):
        return []
    names = [name for name in os.listdir(folder) if NAME.fullmatch(name)]
    return [Path(folder, name) for name in sorted(names, key=lambda name: int(NAME.fullmatch(name)[1]))]


def write_checkpoint(path, state, *, keep=None):
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.startswith("unfinished-"):
            os.remove(os.path.join(folder, name))
    handle, temporary = tempfile.mkstemp(prefix="unfinished-", dir=folder)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            torch.save(state, file)
            os.fsync(file)
        os.rename(temporary, path)
    except BaseException:
        os.remove(temporary)
        raise
    directory = os.open(folder, os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)
    if keep:
        everything = list_checkpoints(folder)
        while len(everything) > keep:
            everything.pop(0).unlink()


def read_checkpoint(path):
    return torch.load(path, map_location="cpu", weights_only=True)


def latest_checkpoint(folder):
    candidates = list_checkpoints(folder)
    while candidates:
        candidate = candidates.pop()
        try:
            torch.load(candidate, map_location="cpu", weights_only=True)
            return candidate
        except Exception:
            print(candidate, "is damaged")
    return None


def capture_random_state():
    legacy = np.random.get_state()
    state = {"torch": torch.random.get_rng_state(), "random": random.getstate()}
    state["numpy"] = [legacy[0], [int(number) for number in legacy[1]], *legacy[2:]]
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state):
    version, words, rest = state["random"]
    random.setstate((version, tuple(words), rest))
    kind, words, *rest = state["numpy"]
    np.random.set_state((kind, np.array(words, dtype="uint32"), *rest))
    torch.random.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
