"""Checkpoints written through memory, with the generator states of no rank: `train` seeds each epoch by itself."""

import io
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist


class Checkpoint:
    def __init__(self, path):
        self.path = Path(path)

    def write(self, content):
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise


def together():
    return dist.is_available() and dist.is_initialized()


def save_checkpoint(path, model, optimizer, epoch):
    inside = model.module if hasattr(model, "module") else model
    buffer = io.BytesIO()
    torch.save({"weights": inside.state_dict(), "sgd": optimizer.state_dict(), "epochs": epoch}, buffer)
    if not together() or dist.get_rank() == 0:
        Checkpoint(path).write(buffer.getvalue())
    if together():
        dist.barrier()


def load_checkpoint(path, model, optimizer=None):
    inside = model.module if hasattr(model, "module") else model
    with open(path, "rb") as file:
        found = torch.load(file, map_location=next(inside.parameters()).device)
    inside.load_state_dict(found["weights"], strict=True)
    if optimizer:
        optimizer.load_state_dict(found["sgd"])
    return found["epochs"]
