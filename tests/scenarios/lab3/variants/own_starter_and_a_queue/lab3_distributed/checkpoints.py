"""Task 3.4: save and load a training that runs on several ranks.

Not for deciding when (ddp_training.py), nor for what a power failure may do to a file (Lab 5).
"""

import io
import os
import tempfile
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
    lie on one file system. Afterwards no other file is left, not even where writing has failed; only a kill may
    leave half a file next to `path`.

    Args:
        path: the file, the same for every rank; its folder is there.
        model: replicated by DistributedDataParallel or not.
        optimizer: of the model's parameters; its state (momentum, the learning rates of its groups) is saved, too.
        epoch: number of epochs that were completed.

    Raises:
        OSError, RuntimeError: the file could not be written; the one at `path` is what it was.
    """
    joined, path, error = dist.is_initialized(), Path(path), None
    if not joined or dist.get_rank() == 0:
        weights = model.state_dict()
        if isinstance(model, DistributedDataParallel):
            nn.modules.utils.consume_prefix_in_state_dict_if_present(weights, "module.")
        half = None
        try:
            torch.save((weights, optimizer.state_dict(), epoch), buffer := io.BytesIO())
            handle, half = tempfile.mkstemp(dir=path.parent, prefix=path.name)
            with open(handle, "wb") as file:
                file.write(buffer.getbuffer())
                os.fsync(file.fileno())
            os.replace(half, path)
        except (OSError, RuntimeError) as e:
            error = e
            if half:
                os.unlink(half)
    if joined:
        fine = torch.tensor([error is None], dtype=torch.int32, device=next(model.parameters()).device)
        dist.all_reduce(fine, op=dist.ReduceOp.MIN)
        if not fine.item() and error is None:
            raise RuntimeError("rank 0 could not write the checkpoint")
    if error:
        raise error


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
    raw = io.BytesIO(Path(path).read_bytes())
    weights, state, epoch = torch.load(raw, map_location=next(model.parameters()).device, weights_only=True)
    (model.module if isinstance(model, DistributedDataParallel) else model).load_state_dict(weights, strict=True)
    _ = optimizer and optimizer.load_state_dict(state)
    return epoch
