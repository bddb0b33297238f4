"""Task 3.4: save and load a training that runs on several ranks.

Not for deciding when (ddp_training.py), nor for what a power failure may do to a file (Lab 5).
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def save_checkpoint(path: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Write model, optimizer and epoch to one file.

    Called by every rank. Rank 0 alone writes, because the others have the same; no other rank creates any file. The
    function returns on every rank only when the file is complete, so that each may read it.

    The file is replaced as a whole or left alone: whatever happens in the middle of writing (a full disk, a kill), what
    was at `path` before can still be loaded, and there is no moment without it. `os.replace` is atomic if both paths
    are on one file system. Afterwards no other file is left, not even where writing has failed; only a kill may
    leave half a file next to `path`.

    Args:
        path: the file, the same for every rank; its folder is there.
        model: replicated by DistributedDataParallel or not.
        optimizer: of the model's parameters; its state (momentum, the learning rates of its groups) is saved, too.
        epoch: number of epochs that were completed.

    Raises:
        OSError, RuntimeError: the file could not be written; the one at `path` is what it was.
    """
    # TODO(task 3.4):
    # 1. On rank 0: collect the state of the module itself, not of its wrapper, whose names begin with "module.".
    # 2. Write it to a temporary file next to `path`, then move that to `path`.
    # 3. All ranks: wait for rank 0 (dist.barrier, if there is a process group).
    # --- solution: task 3.4 ---
    if not dist.is_initialized() or dist.get_rank() == 0:
        path = Path(path)
        state = {"model": _inner(model).state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            torch.save(state, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    if dist.is_initialized():
        dist.barrier()
    # --- end ---


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
    # TODO(task 3.4):
    # 1. Read the file onto the device of the model (map_location): GPU 0 need not be this rank's.
    # 2. Load the state of the module itself, strictly, and of the optimizer.
    # --- solution: task 3.4 ---
    device = next(model.parameters()).device
    state = torch.load(path, map_location=device, weights_only=True)
    _inner(model).load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])
    # --- end ---


# --- solution only ---
def _inner(model: nn.Module) -> nn.Module:
    """The module that DistributedDataParallel wraps, or the model itself."""
    return model.module if isinstance(model, DistributedDataParallel) else model


# --- end ---
