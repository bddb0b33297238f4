"""Task 3.4: save and load a training that runs on several ranks.

Not for deciding when (ddp_training.py), nor for what a power failure may do to a file (Lab 5).
"""

import contextlib
import functools
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def bare(model: nn.Module) -> nn.Module:
    """Without what DistributedDataParallel puts around it."""
    return getattr(model, "module", model) if isinstance(model, DistributedDataParallel) else model


def save_checkpoint(path: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Write model, optimizer and epoch to one file.

    Called by every rank. Rank 0 alone writes, because the others have the same; no other rank creates any file. The
    function returns on every rank only when the file is complete, so that each may read it.

    The file is replaced as a whole or left alone: whatever happens in the middle of writing (a full disk, a kill), what
    was at `path` before can still be loaded, and there is no moment without it. `os.replace` is atomic if both paths
    lie on one file system. Afterwards no other file is left, not even where writing has failed; only a kill may
    leave half a file beside `path`.

    Args:
        path: the file, the same for every rank; its folder is there.
        model: replicated by DistributedDataParallel or not.
        optimizer: of the model's parameters; its state (momentum, the learning rates of its groups) is saved, too.
        epoch: number of epochs that were completed.

    Raises:
        OSError, RuntimeError: the file could not be written; the one at `path` is what it was.
    """
    if not dist.is_initialized() or dist.get_rank() == 0:
        with contextlib.ExitStack() as stack:
            target = Path(path)
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=".saving-")
            stack.callback(functools.partial(Path(name).unlink, missing_ok=True))
            with os.fdopen(handle, "wb") as file:
                states = {"model": bare(model), "optimizer": optimizer}
                torch.save({"epoch": epoch, **{key: of.state_dict() for key, of in states.items()}}, file)
            Path(name).replace(target)
    if dist.is_initialized():
        dist.barrier()


def load_checkpoint(path: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Read what `save_checkpoint` wrote, into a model and an optimizer that are there already.

    Called by every rank. It makes no difference how many ranks wrote the file, nor whether the model was or is
    replicated by DistributedDataParallel.

    Args:
        path: the file.
        model: of the same architecture; its parameters and buffers are overwritten, in place and on the device they are
            on.
        optimizer: of the same kind; its state, learning rates included, is overwritten. None: only the model is wanted.

    Returns:
        The number of epochs that were completed.

    Raises:
        RuntimeError: parameters of the model and of the file do not have the same names and shapes; nothing is left out
            silently.
        OSError: there is no such file.

    Source: https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """
    with open(path, "rb") as file:
        content = torch.load(file, map_location="cpu", weights_only=True)
    bare(model).load_state_dict(content["model"], strict=True)
    for one in filter(None, [optimizer]):
        one.load_state_dict(content["optimizer"])
    return int(content["epoch"])
