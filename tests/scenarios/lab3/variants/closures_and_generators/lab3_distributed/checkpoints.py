"""Checkpoints as comprehensions over named tensors, copied back one by one; the optimizer as it tells itself."""

import os
import tempfile

import torch
import torch.distributed as dist


def inner(model):
    return getattr(model, "module", model)


def save_checkpoint(path, model, optimizer, epoch):
    if not dist.is_initialized() or dist.get_rank() == 0:
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in inner(model).state_dict().items()}
        folder, name = os.path.split(os.path.abspath(path))
        handle, draft = tempfile.mkstemp(prefix=name, dir=folder)
        try:
            with os.fdopen(handle, "wb") as stream:
                torch.save((tensors, optimizer.state_dict(), epoch), stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(draft, path)
        except BaseException:
            os.remove(draft)
            raise
    if dist.is_initialized():
        dist.barrier()


def load_checkpoint(path, model, optimizer=None):
    tensors, steps, epoch = torch.load(path, map_location="cpu", weights_only=True)
    own = dict(inner(model).state_dict())
    fits = {name: tuple(tensor.shape) for name, tensor in own.items()}
    if fits != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
        raise RuntimeError(f"the file has {sorted(tensors)}, the model {sorted(own)}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
    if optimizer is not None:
        optimizer.load_state_dict(steps)
    return epoch
