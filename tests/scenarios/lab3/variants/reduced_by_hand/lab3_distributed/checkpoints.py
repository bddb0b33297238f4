"""Task 3.4: save and load a training that runs on several ranks.

Not for deciding when (ddp_training.py), nor for what a power failure may do to a file (Lab 5).
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from .roles import from_first


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
    trouble: Exception | None = None
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
                half = Path(folder, "half")
                with half.open("wb") as file:
                    torch.save([get_model_state_dict(model), optimizer.state_dict(), {"epoch": epoch}], file)
                half.replace(path)
        except Exception as error:
            trouble = error
    verdict = from_first(None if trouble is None else str(trouble))  # so all wait for it, and fail together
    if trouble is not None:
        raise trouble
    if verdict is not None:
        raise RuntimeError(f"rank 0 could not write {path}: {verdict}")


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
    saved = torch.load(path, map_location="cpu", weights_only=True)  # load_state_dict copies to where it belongs
    set_model_state_dict(model, saved[0], options=StateDictOptions(strict=True))
    if optimizer is not None:
        optimizer.load_state_dict(saved[1])
    return int(saved[2]["epoch"])
